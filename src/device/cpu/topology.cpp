#include "device/cpu/topology.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace onecard::cpu {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, DestroyTopology>;

Topology load_topology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return nullptr;
  Topology topology(raw);
  return hwloc_topology_load(raw) == 0 ? std::move(topology) : nullptr;
}

cpu_set_t affinity() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  return allowed;
}

}  // namespace

std::vector<Core> allowed_cores() {
  const cpu_set_t allowed = affinity();
  std::vector<Core> cores;
  if (const Topology topology = load_topology()) {
    const int num_cores = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_CORE);
    for (int i = 0; i < num_cores; ++i) {
      const hwloc_obj_t object = hwloc_get_obj_by_type(topology.get(), HWLOC_OBJ_CORE, unsigned(i));
      Core core;
      for (int cpu = hwloc_bitmap_first(object->cpuset); cpu >= 0;
           cpu = hwloc_bitmap_next(object->cpuset, cpu))
        if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed)) core.cpus.push_back(cpu);
      core.numa_node = std::max(0, hwloc_bitmap_first(object->nodeset));
      if (!core.cpus.empty()) cores.push_back(core);
    }
  }
  if (cores.empty())
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &allowed)) cores.push_back({{cpu}, 0});
  return cores;
}

std::vector<int> worker_cpus(const std::vector<Core>& cores, int num_threads) {
  std::vector<int> cpus;
  size_t deepest = 0;
  for (const Core& core : cores) deepest = std::max(deepest, core.cpus.size());
  // The first core comes last in each round: interrupts and the rest of the program live there.
  for (size_t sibling = 0; sibling < deepest; ++sibling)
    for (size_t i = 1; i <= cores.size(); ++i) {
      const Core& core = cores[i % cores.size()];
      if (sibling < core.cpus.size() && int(cpus.size()) < num_threads)
        cpus.push_back(core.cpus[sibling]);
    }
  return cpus;
}

std::vector<int> thread_counts(const std::vector<Core>& cores) {
  int num_cpus = 0;
  for (const Core& core : cores) num_cpus += int(core.cpus.size());
  const int most = std::max(1, num_cpus > 4 ? num_cpus - 2 : num_cpus);
  std::vector<int> counts{most};
  for (const int count : {int(cores.size()), most / 2})
    if (count >= 1 && count < counts.back()) counts.push_back(count);
  return counts;
}

int64_t last_level_cache_bytes() {
  const Topology topology = load_topology();
  if (topology == nullptr) return 0;
  const cpu_set_t allowed = affinity();
  for (const auto type : {HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE}) {
    int64_t bytes = 0;
    const int num_caches = hwloc_get_nbobjs_by_type(topology.get(), type);
    for (int i = 0; i < num_caches; ++i) {
      const hwloc_obj_t cache = hwloc_get_obj_by_type(topology.get(), type, unsigned(i));
      bool ours = false;
      for (int cpu = hwloc_bitmap_first(cache->cpuset); cpu >= 0;
           cpu = hwloc_bitmap_next(cache->cpuset, cpu))
        ours = ours || (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed));
      if (ours) bytes += int64_t(cache->attr->cache.size);
    }
    if (bytes > 0) return bytes;
  }
  return 0;
}

bool pin_this_thread(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  return sched_setaffinity(0, sizeof one, &one) == 0;
}

}  // namespace onecard::cpu
