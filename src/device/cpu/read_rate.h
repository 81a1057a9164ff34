// How fast the CPU can read its memory: the ceiling beside which every expert figure is reported.
#pragma once

#include <cstddef>
#include <span>

namespace onecard {
class ThreadPool;
}

namespace onecard::cpu {

/// Bytes per second at which all threads of `pool` together read every piece once, a piece a
/// ticket; the best of `repeats` passes. Together the pieces should be several times the last-level
/// cache, and already written. `pool` must be idle.
double measure_read_rate(ThreadPool& pool, std::span<const std::span<const std::byte>> pieces,
                         int repeats);

/// The same for `memory` in pieces of 1 MiB.
double measure_read_rate(ThreadPool& pool, std::span<const std::byte> memory, int repeats);

}  // namespace onecard::cpu
