#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "model/sequence_state.h"
#include "model/step_context.h"
#include "plan/host_memory.h"
#include "plan/serving_plan.h"
#include "support/temp_dir.h"

namespace onecard::plan {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

constexpr int64_t kMib = 1 << 20;

// proc/ and sys/ of a machine that a test describes.
class Machine {
 public:
  Machine() { write("proc/meminfo", "MemTotal: 4000000 kB\nMemAvailable: 1024000 kB\n"); }
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = directory_.file(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  HostMemory memory() const { return host_memory(directory_.path()); }

 private:
  test::TempDir directory_;
};

TEST(HostMemory, IsWhatIsAvailableWithoutGroups) {
  Machine machine;
  EXPECT_EQ(machine.memory().usable_bytes, 1000 * kMib);
  EXPECT_EQ(machine.memory().limited_by, "available memory");
}

TEST(HostMemory, TheTightestGroupOnTheWayToTheRootCounts) {
  Machine machine;
  machine.write("proc/self/cgroup", "0::/outer/inner\n");
  machine.write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  machine.write("sys/fs/cgroup/outer/inner/memory.current", "1048576\n");
  machine.write("sys/fs/cgroup/outer/memory.max", std::to_string(600 * kMib));
  machine.write("sys/fs/cgroup/outer/memory.current", std::to_string(300 * kMib));
  // 250 MiB of what is charged is page cache, which goes when it is needed.
  machine.write("sys/fs/cgroup/outer/memory.stat",
                "anon 5\nfile " + std::to_string(250 * kMib) + "\nfile_mapped 7\n");
  EXPECT_EQ(machine.memory().usable_bytes, 550 * kMib);
  EXPECT_THAT(machine.memory().limited_by, EndsWith("/outer/memory.max"));
}

TEST(HostMemory, KnowsTheFirstVersionOfGroups) {
  Machine machine;
  machine.write("proc/self/cgroup", "5:cpu,memory:/box\n4:pids:/box\n");
  machine.write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", std::to_string(100 * kMib));
  machine.write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", std::to_string(30 * kMib));
  machine.write("sys/fs/cgroup/memory/box/memory.stat",
                "cache 1\ntotal_cache " + std::to_string(10 * kMib) + "\n");
  EXPECT_EQ(machine.memory().usable_bytes, 80 * kMib);
}

TEST(HostMemory, WhatThisProcessHoldsIsItsOwn) {
  Machine machine;
  machine.write("proc/self/status",
                "VmRSS:\t   9000 kB\nRssAnon:\t    2048 kB\nRssFile:\t 6952 kB\n");
  EXPECT_EQ(machine.memory().usable_bytes, 1002 * kMib);
  machine.write("proc/self/cgroup", "0::/box\n");
  machine.write("sys/fs/cgroup/box/memory.max", std::to_string(100 * kMib));
  machine.write("sys/fs/cgroup/box/memory.current", std::to_string(10 * kMib));
  EXPECT_EQ(machine.memory().usable_bytes, 92 * kMib);
}

TEST(HostMemory, AFullGroupLeavesNothing) {
  Machine machine;
  machine.write("proc/self/cgroup", "0::/\n");
  machine.write("sys/fs/cgroup/memory.max", "1000\n");
  machine.write("sys/fs/cgroup/memory.current", "2000\n");
  EXPECT_EQ(machine.memory().usable_bytes, 0);
}

TEST(HostMemory, ThisMachineHasSome) { EXPECT_GT(host_memory().usable_bytes, 0); }

class ServingPlanTest : public testing::Test {
 protected:
  ServingPlanTest() {
    config_.num_hidden_layers = 4;
    config_.compress_ratios = {0, 2, 1, 1};
    config_.kv_source_layer_ids = {1, 2};
    config_.index_source_layer_ids = {1, 2};
    config_.head_dim = 128;
    config_.qk_rope_head_dim = 32;
    config_.max_position_embeddings = 100000;
  }
  model::ModelConfig config_;
};

// Against what the allocator hands out.
TEST_F(ServingPlanTest, AgreesWithWhatASlotAndAWorkspaceAllocate) {
  const auto allocated = [] {
    const struct mallinfo2 info = mallinfo2();
    return int64_t(info.uordblks + info.hblkhd);
  };
  const int64_t before = allocated();
  const model::SequenceState state(config_, {.capacity_tokens = 50000});
  const int64_t slot_bytes = allocated() - before;
  const model::Workspace prefill(config_, 300, 50000);
  const model::Workspace decode(config_, 2, 50000);
  const int64_t workspace_bytes = allocated() - before - slot_bytes;
  if (slot_bytes == 0) GTEST_SKIP() << "this allocator does not count";

  const ServingNeeds needs{.weight_bytes = 5 * kMib,
                           .prefix_cache_bytes = 3 * kMib,
                           .num_slots = 2,
                           .context_length = 50000,
                           .prefill_rows = 300,
                           .tail_rows = 100,
                           .logits_rows = 7};
  const ServingPlan plan = plan_serving(config_, needs, {1000 * kMib, "test"});
  EXPECT_NEAR(double(plan.slot_bytes), double(slot_bytes), 0.01 * double(slot_bytes));
  const int64_t rows_bytes =
      4 * (2 * 100 * (config_.hc_mult * config_.hidden_size + config_.hc_mult) +
           7 * config_.vocab_size);
  EXPECT_NEAR(double(plan.workspace_bytes), double(workspace_bytes + rows_bytes),
              0.01 * double(workspace_bytes + rows_bytes));
  EXPECT_EQ(plan.total_bytes,
            kProgramBytes + 8 * kMib + 2 * plan.slot_bytes + plan.workspace_bytes);
  EXPECT_TRUE(plan.fits);
  EXPECT_NO_THROW(require_fit(plan, needs, {1000 * kMib, "test"}));
}

TEST_F(ServingPlanTest, SaysWhatWouldFit) {
  ServingNeeds needs{.weight_bytes = 5 * kMib, .num_slots = 4, .context_length = 100000};
  const int64_t all = plan_serving(config_, needs, {1000000 * kMib, ""}).total_bytes;
  needs.context_length = 50000;
  const int64_t half = plan_serving(config_, needs, {1000000 * kMib, ""}).total_bytes;
  EXPECT_LT(half, all);
  needs.context_length = 100000;
  const HostMemory memory{half, "a group"};
  const ServingPlan plan = plan_serving(config_, needs, memory);
  EXPECT_FALSE(plan.fits);
  EXPECT_NEAR(double(plan.largest_context_length), 50000, 2);
  try {
    require_fit(plan, needs, memory);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(error.what(), HasSubstr("a group"));
    EXPECT_THAT(error.what(),
                HasSubstr("--max-model-len " + std::to_string(plan.largest_context_length)));
  }
  needs.context_length = plan.largest_context_length;
  EXPECT_TRUE(plan_serving(config_, needs, memory).fits);
  needs.context_length = plan.largest_context_length + 2;
  EXPECT_FALSE(plan_serving(config_, needs, memory).fits);
}

TEST_F(ServingPlanTest, WeightsAloneCanBeTooMuch) {
  const ServingNeeds needs{.weight_bytes = 50 * kMib, .context_length = 1000};
  const HostMemory memory{20 * kMib, "a group"};
  const ServingPlan plan = plan_serving(config_, needs, memory);
  EXPECT_EQ(plan.largest_context_length, 0);
  EXPECT_THROW(require_fit(plan, needs, memory), Error);
}

}  // namespace
}  // namespace onecard::plan
