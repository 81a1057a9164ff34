// What a device can do at most, measured; and memory with random contents to measure on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/stream.h"

namespace onecard::cuda {

/// Queues a read of all of `data`: bytes a multiple of 16, data aligned to 16. `sink` is 4 bytes of
/// device memory, written so that the reads count.
void queue_read(const Stream& stream, const std::byte* data, int64_t bytes, uint32_t* sink,
                int num_multiprocessors);

/// Queues fp16 tensor-core products with f32 sums out of registers; returns their floating point
/// operations (two a multiplication with its addition).
double queue_products(const Stream& stream, int64_t rounds, float* sink, int num_multiprocessors);

/// Queues `bytes` (a multiple of 4) of a hash of `seed` and the place.
void queue_random(const Stream& stream, std::byte* data, int64_t bytes, uint32_t seed);

}  // namespace onecard::cuda
