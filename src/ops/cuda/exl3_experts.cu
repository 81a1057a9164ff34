// Routed experts: the plan of who computes which rows, made on the device, and the two ways to run
// it. Few rows an expert: two launches, each thread block rotating what it needs. Many rows:
// activations rotated once into fragments, one product a matrix.
#include <algorithm>
#include <cstring>

#include "ops/cuda/block_sum.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/rows_many.cuh"
#include "ops/cuda/scratch.cuh"
#include "ops/routed_experts.h"

namespace onecard::ops::cuda {
namespace {

constexpr int kPlanThreads = 1024;
static_assert(kMaxRoutedExperts <= kPlanThreads);
constexpr int64_t kMaxFewItems = 384;  // of one pass: bounds counters and partial sums

/// Items of at most `item_rows` rows, and for every choice of a token its slot.
struct Plan {
  ExpertItem* items;
  int32_t* num_items;
  int32_t* slot_token;
  float* slot_weight;
  int32_t* choice_slot;
};

// One thread block. Which slot of its expert a choice gets may differ from run to run; no result
// depends on it.
__global__ __launch_bounds__(kPlanThreads) void plan_kernel(const int32_t* expert_ids,
                                                            const float* weights, int num_choices,
                                                            int experts_per_token, int item_rows,
                                                            Plan plan) {
  __shared__ int count[kMaxRoutedExperts];
  const int expert = int(threadIdx.x);
  count[expert] = 0;
  __syncthreads();
  for (int i = expert; i < num_choices; i += kPlanThreads) atomicAdd(&count[expert_ids[i]], 1);
  __syncthreads();
  const int num_rows = count[expert];
  int total = 0, num_items = 0;
  const int first = block_scan<kPlanThreads>(num_rows, total);
  int item = block_scan<kPlanThreads>((num_rows + item_rows - 1) / item_rows, num_items);
  for (int begin = 0; begin < num_rows; begin += item_rows) {
    const int left = num_rows - begin;
    plan.items[item++] = {expert, first + begin, left < item_rows ? left : item_rows};
  }
  if (expert == 0) *plan.num_items = num_items;
  count[expert] = first;
  __syncthreads();
  for (int i = expert; i < num_choices; i += kPlanThreads) {
    const int slot = atomicAdd(&count[expert_ids[i]], 1);
    plan.slot_token[slot] = i / experts_per_token;
    plan.slot_weight[slot] = weights[i];
    plan.choice_slot[i] = slot;
  }
}

/// Fragments of down's inputs from the raw products of gate and up: one warp a row and unit.
__global__ __launch_bounds__(256) void middle_kernel(Exl3Items items, const float* gate_z,
                                                     const float* up_z, const float* slot_weight,
                                                     int num_units, float limit,
                                                     uint32_t* fragments) {
  const ExpertItem item = items.item(blockIdx.y);
  const int lane = int(threadIdx.x) % 32, row = int(blockIdx.x) / num_units * 8 + threadIdx.x / 32;
  if (row >= item.count) return;
  const int unit = int(blockIdx.x) % num_units;
  const ExpertTiles& expert = items.experts[item.expert];
  const int64_t at = (int64_t(item.first + row) * num_units + unit) * 128;
  float g[4], u[4], scale[4];
  load_4(gate_z + at, lane, g);
  load_4(up_z + at, lane, u);
  finish_row(g, expert.gate.svh + unit * 128, lane);
  finish_row(u, expert.up.svh + unit * 128, lane);
  load_scales(expert.down.suh + unit * 128, lane, scale);
  const float weight = slot_weight[item.first + row];
#pragma unroll
  for (int i = 0; i < 4; ++i) g[i] = __fmul_rn(swiglu_value(g[i], u[i], limit, weight), scale[i]);
  hadamard_128(g, lane);
  store_fragment_row(
      fragments + (int64_t(blockIdx.y) * num_units + unit) * kManyColumnTiles * kFragmentWords,
      kManyColumnTiles, row, lane, g);
}

/// out[t] += sum over its choices of the finished products of down: one warp a token and group.
__global__ __launch_bounds__(256) void combine_kernel(const float* z, const int32_t* choice_slot,
                                                      const int32_t* expert_ids,
                                                      const ExpertTiles* experts,
                                                      int experts_per_token, int groups,
                                                      View<float> out) {
  const int lane = int(threadIdx.x) % 32;
  const int group = int(blockIdx.x) * 8 + int(threadIdx.x) / 32;
  if (group >= groups) return;
  const int64_t token = blockIdx.y;
  float* const row = out.row(token) + int64_t(group) * 128;
  float v[4], next[4];
  load_4(row, lane, v);
  for (int k = 0; k < experts_per_token; ++k) {
    const int64_t choice = token * experts_per_token + k;
    load_4(z + (int64_t(choice_slot[choice]) * groups + group) * 128, lane, next);
    finish_row(next, experts[expert_ids[choice]].down.svh + group * 128, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] += next[i];
  }
  store_4(row, lane, v);
}

struct Shape {
  int64_t hidden_blocks, num_units, max_items, num_choices;
  int hidden_slice_blocks, unit_slice_blocks, num_hidden_slices, num_unit_slices;
};

Shape make_shape(const RoutedExperts& experts, int64_t tokens, int64_t experts_per_token,
                 int64_t item_rows) {
  Shape s{};
  s.hidden_blocks = experts.hidden_size / 128;
  s.num_units = experts.intermediate_size / 128;
  s.num_choices = tokens * experts_per_token;
  // Every choice an expert of its own, or every expert with a last item that is not full.
  s.max_items = std::min(s.num_choices, experts.num_experts + s.num_choices / item_rows);
  const auto cut = [](int64_t blocks, int64_t wanted) {
    const int64_t slices = (blocks + wanted - 1) / wanted;
    return int((blocks + slices - 1) / slices);
  };
  s.hidden_slice_blocks = cut(s.hidden_blocks, 5);
  s.unit_slice_blocks = cut(s.num_units, 3);
  s.num_hidden_slices = int((s.hidden_blocks + s.hidden_slice_blocks - 1) / s.hidden_slice_blocks);
  s.num_unit_slices = int((s.num_units + s.unit_slice_blocks - 1) / s.unit_slice_blocks);
  return s;
}

// Up to here an expert is expected to have few rows.
bool has_few_rows(const RoutedExperts& experts, int64_t tokens, int64_t experts_per_token) {
  return tokens * experts_per_token <= std::min(kMaxFewItems, 4 * experts.num_experts);
}

Plan take_plan(ScratchCutter& scratch, const Shape& s) {
  Plan plan{};
  plan.items = scratch.take<ExpertItem>(s.max_items, "routed experts");
  plan.num_items = scratch.take<int32_t>(1, "routed experts");
  plan.slot_token = scratch.take<int32_t>(s.num_choices, "routed experts");
  plan.slot_weight = scratch.take<float>(s.num_choices, "routed experts");
  plan.choice_slot = scratch.take<int32_t>(s.num_choices, "routed experts");
  return plan;
}

void make_plan(const Exec& exec, const Plan& plan, View<const int32_t> expert_ids,
               View<const float> weights, int64_t item_rows) {
  launch(exec, dim3(1), dim3(kPlanThreads), 0, plan_kernel, expert_ids.data, weights.data,
         int(expert_ids.rows * expert_ids.cols), int(expert_ids.cols), int(item_rows), plan);
}

void run_few(const Exec& exec, const RoutedExperts& experts, View<const float> x,
             View<const int32_t> expert_ids, View<const float> weights, View<float> out) {
  const Shape s = make_shape(experts, x.rows, expert_ids.cols, kFewRows);
  ScratchCutter scratch(exec);
  const Plan plan = take_plan(scratch, s);
  ExpertsFew work;
  work.items = plan.items;
  work.num_items = plan.num_items;
  work.experts = reinterpret_cast<const ExpertTiles*>(experts.table);
  work.slot_token = plan.slot_token;
  work.slot_weight = plan.slot_weight;
  work.choice_slot = plan.choice_slot;
  work.x = x.data;
  work.x_stride = x.stride;
  work.out = out.data;
  work.out_stride = out.stride;
  work.num_tokens = int32_t(x.rows);
  work.experts_per_token = int32_t(expert_ids.cols);
  work.hidden_blocks = int32_t(s.hidden_blocks);
  work.num_units = int32_t(s.num_units);
  work.hidden_slice_blocks = s.hidden_slice_blocks;
  work.unit_slice_blocks = s.unit_slice_blocks;
  work.swiglu_limit = experts.swiglu_limit;
  work.max_items = int32_t(s.max_items);
  work.counters = scratch.counters(s.max_items * (s.num_units + s.hidden_blocks) + s.hidden_blocks,
                                   "routed experts");
  work.hidden = scratch.take<uint32_t>(s.max_items * s.num_units * kFewColumnTiles * kFragmentWords,
                                       "routed experts");
  work.gate_partials = scratch.take<float>(s.num_choices * s.num_units * s.num_hidden_slices * 256,
                                           "routed experts");
  work.down_partials = scratch.take<float>(
      s.num_choices * s.hidden_blocks * s.num_unit_slices * 128, "routed experts");
  work.expert_out = scratch.take<float>(s.num_choices * experts.hidden_size, "routed experts");
  make_plan(exec, plan, expert_ids, weights, kFewRows);
  with_exl3_instance(experts.instance, [&](auto bits) {
    Exl3Kernels<bits()>::experts_gate_up(exec, work);
    Exl3Kernels<bits()>::experts_down(exec, work);
  });
}

void run_many(const Exec& exec, const RoutedExperts& experts, View<const float> x,
              View<const int32_t> expert_ids, View<const float> weights, View<float> out) {
  const Shape s = make_shape(experts, x.rows, expert_ids.cols, kManyRows);
  ScratchCutter scratch(exec);
  const Plan plan = take_plan(scratch, s);
  const int64_t block_fragments = kManyColumnTiles * kFragmentWords / 2;
  auto* const inputs =
      scratch.take<uint2>(s.max_items * s.hidden_blocks * block_fragments, "routed experts");
  auto* const hidden =
      scratch.take<uint2>(s.max_items * s.num_units * block_fragments, "routed experts");
  auto* const gate_z =
      scratch.take<float>(s.num_choices * experts.intermediate_size, "routed experts");
  auto* const up_z =
      scratch.take<float>(s.num_choices * experts.intermediate_size, "routed experts");
  auto* const down_z = scratch.take<float>(s.num_choices * experts.hidden_size, "routed experts");
  make_plan(exec, plan, expert_ids, weights, kManyRows);

  Exl3Items items;
  items.items = plan.items;
  items.num_items = plan.num_items;
  items.experts = reinterpret_cast<const ExpertTiles*>(experts.table);
  const auto multiply = [&](ExpertPart part, const uint2* fragments, int64_t in_blocks,
                            int slice_blocks, int64_t groups, float* z) {
    items.part = part;
    with_exl3_instance(experts.instance, [&](auto bits) {
      Exl3Kernels<bits()>::multiply_many(exec, items, s.max_items, fragments, int(in_blocks),
                                         slice_blocks, int(groups), z);
    });
  };
  for (const ExpertPart part : {ExpertPart::kGate, ExpertPart::kUp}) {
    items.part = part;
    prepare_items(exec, items, s.max_items, x, plan.slot_token, int(s.hidden_blocks), inputs);
    multiply(part, inputs, s.hidden_blocks, s.hidden_slice_blocks, s.num_units,
             part == ExpertPart::kGate ? gate_z : up_z);
  }
  launch(exec, dim3(unsigned(kManyRows / 8 * s.num_units), unsigned(s.max_items)), dim3(256), 0,
         middle_kernel, items, gate_z, up_z, plan.slot_weight, int(s.num_units),
         experts.swiglu_limit, reinterpret_cast<uint32_t*>(hidden));
  multiply(ExpertPart::kDown, hidden, s.num_units, s.unit_slice_blocks, s.hidden_blocks, down_z);
  launch(exec, dim3(unsigned((s.hidden_blocks + 7) / 8), unsigned(x.rows)), dim3(256), 0,
         combine_kernel, down_z, plan.choice_slot, expert_ids.data, items.experts,
         int(expert_ids.cols), int(s.hidden_blocks), out);
}

}  // namespace

std::vector<std::byte> routed_experts_table(std::span<const exl3::ExpertView> experts,
                                            int& instance) {
  std::vector<ExpertTiles> tiles;
  instance = -1;
  for (const exl3::ExpertView& expert : experts) {
    tiles.push_back({exl3_tiles(expert.gate), exl3_tiles(expert.up), exl3_tiles(expert.down)});
    for (const Exl3Tiles& part : {tiles.back().gate, tiles.back().up, tiles.back().down})
      instance = instance == -1 || instance == exl3_instance(part) ? exl3_instance(part) : 0;
  }
  std::vector<std::byte> bytes(tiles.size() * sizeof(ExpertTiles));
  std::memcpy(bytes.data(), tiles.data(), bytes.size());
  return bytes;
}

int64_t routed_experts_scratch_bytes(const RoutedExperts& experts, int64_t tokens,
                                     int64_t experts_per_token) {
  const bool few = has_few_rows(experts, tokens, experts_per_token);
  const Shape s = make_shape(experts, tokens, experts_per_token, few ? kFewRows : kManyRows);
  const int64_t plan_bytes = 12 * s.max_items + 12 * s.num_choices;
  const int64_t parts = 16 * 256;
  if (few)
    return DeviceScratch::kCounterBytes + plan_bytes + parts +
           4 * (s.max_items * s.num_units * kFewColumnTiles * kFragmentWords +
                s.num_choices * (s.num_units * s.num_hidden_slices * 256 +
                                 s.hidden_blocks * s.num_unit_slices * 128 + experts.hidden_size));
  return DeviceScratch::kCounterBytes + plan_bytes + parts +
         s.max_items * (s.hidden_blocks + s.num_units) * kManyColumnTiles * kFragmentWords * 4 +
         4 * s.num_choices * (2 * experts.intermediate_size + experts.hidden_size);
}

void routed_experts_add(const Exec& exec, const RoutedExperts& experts, View<const float> x,
                        View<const int32_t> expert_ids, View<const float> weights,
                        View<float> out) {
  // As many tokens at a time as the scratch memory takes.
  int64_t tokens = std::min<int64_t>(x.rows, 16384);
  while (tokens > 1 &&
         cuda::routed_experts_scratch_bytes(experts, tokens, expert_ids.cols) > exec.scratch.bytes)
    tokens = (tokens + 1) / 2;
  for (int64_t begin = 0; begin < x.rows; begin += tokens) {
    const int64_t end = std::min(x.rows, begin + tokens);
    const auto run = has_few_rows(experts, end - begin, expert_ids.cols) ? run_few : run_many;
    run(exec, experts, x.rows_between(begin, end), expert_ids.rows_between(begin, end),
        weights.rows_between(begin, end), out.rows_between(begin, end));
  }
}

}  // namespace onecard::ops::cuda
