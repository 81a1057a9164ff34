#include "device/cpu/topology.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <thread>

namespace onecard::cpu {
namespace {

TEST(Topology, EveryAllowedCpuIsInOneCore) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  std::vector<int> seen;
  for (const Core& core : allowed_cores())
    for (const int cpu : core.cpus) {
      EXPECT_TRUE(CPU_ISSET(cpu, &allowed)) << cpu;
      seen.push_back(cpu);
    }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
  EXPECT_EQ(int(seen.size()), CPU_COUNT(&allowed));
}

TEST(Topology, WorkersTakeEveryCoreBeforeASecondThreadOfOne) {
  const std::vector<Core> cores{{{0, 4}, 0}, {{1, 5}, 0}, {{2}, 1}};
  EXPECT_EQ(worker_cpus(cores, 2), (std::vector<int>{1, 2}));
  EXPECT_EQ(worker_cpus(cores, 4), (std::vector<int>{1, 2, 0, 5}));
  EXPECT_EQ(worker_cpus(cores, 99), (std::vector<int>{1, 2, 0, 5, 4}));
}

TEST(Topology, ThreadCountsLeaveTwoCpusFreeAndTryOneACore) {
  const auto machine = [](int num_cores, int threads_per_core) {
    std::vector<Core> cores(static_cast<size_t>(num_cores));
    for (Core& core : cores) core.cpus.resize(size_t(threads_per_core));
    return cores;
  };
  EXPECT_EQ(thread_counts(machine(8, 2)), (std::vector<int>{14, 8, 7}));
  EXPECT_EQ(thread_counts(machine(16, 1)), (std::vector<int>{14, 7}));
  EXPECT_EQ(thread_counts(machine(3, 2)), (std::vector<int>{4, 3, 2}));
  EXPECT_EQ(thread_counts(machine(4, 1)), (std::vector<int>{4, 2}));
  EXPECT_EQ(thread_counts(machine(1, 2)), (std::vector<int>{2, 1}));
  EXPECT_EQ(thread_counts(machine(1, 1)), std::vector<int>{1});
}

TEST(Topology, APinnedThreadStaysWhereItIs) {
  const int cpu = allowed_cores().back().cpus.back();
  std::thread([cpu] {
    ASSERT_TRUE(pin_this_thread(cpu));
    EXPECT_EQ(sched_getcpu(), cpu);
    EXPECT_EQ(allowed_cores().size(), 1u);
  }).join();
}

}  // namespace
}  // namespace onecard::cpu
