// Which logical CPUs this process may use, and which share a core.
#pragma once

#include <cstdint>
#include <vector>

namespace onecard::cpu {

struct Core {
  std::vector<int> cpus;  // operating-system numbers of its logical CPUs that we may run on
  int numa_node = 0;
};

/// Cores in the machine's own order, as hwloc sees them inside this process's affinity and cgroup.
/// If the topology cannot be read: one core for each allowed CPU.
std::vector<Core> allowed_cores();

/// The CPUs for `num_threads` workers: one of every core before a second of any, and the first core
/// last each time, since interrupts and the rest of the program live there. Fewer when there are
/// fewer.
std::vector<int> worker_cpus(const std::vector<Core>& cores, int num_threads);

/// Numbers of threads worth a timing, the preferred one first: all allowed CPUs, but two of more
/// than four, which the rest of the program needs; then one for each core, and half.
std::vector<int> thread_counts(const std::vector<Core>& cores);

/// Bytes of all last-level caches that the allowed CPUs share; 0 if they cannot be read.
int64_t last_level_cache_bytes();

/// Pins the calling thread; false if the system refuses.
bool pin_this_thread(int cpu);

}  // namespace onecard::cpu
