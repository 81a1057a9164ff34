// The bodies of exl3_kernels.cuh. Included by the instances alone.
#pragma once

#include "ops/cuda/exl3_kernels.cuh"

namespace onecard::ops::cuda {

template <int kBits, int kColumnTiles>
__global__ __launch_bounds__(kExl3Threads) void exl3_linear_few_kernel(Exl3Jobs jobs,
                                                                       float* partials,
                                                                       unsigned* counters) {
  int idx = 0;
  while (idx + 1 < jobs.num_jobs && int(blockIdx.x) >= jobs.job[idx + 1].first_block) ++idx;
  const Exl3Job& job = jobs.job[idx];
  const int local = int(blockIdx.x) - job.first_block;
  const int group = local / job.num_slices, slice = local % job.num_slices;
  const int begin = slice * job.slice_blocks;
  const int left = job.in_blocks - begin;
  const int num_blocks = left < job.slice_blocks ? left : job.slice_blocks;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int bits = kBits > 0 ? kBits : job.w.bits;
  const LaneWindow window = lane_window(bits, lane);

  // The first weights are under way while the activations are rotated.
  StripWords<kBits> words =
      load_strip<kBits>(job.w.strip(begin, group, warp), job.w.tile_stride, window);
  auto* const fragments = reinterpret_cast<uint32_t*>(dynamic_shared());
  for (int task = warp; task < jobs.num_rows * num_blocks; task += kExl3Warps) {
    const int row = task / num_blocks, block = task % num_blocks;
    const int64_t column = int64_t(begin + block) * 128;
    prepare_row(job.x + row * job.x_stride + column, job.w.suh + column, lane,
                fragments + block * kColumnTiles * kFragmentWords, kColumnTiles, row);
  }
  __syncthreads();

  float sums[kColumnTiles][4] = {};
  for (int block = 0; block < num_blocks; ++block) {
    const StripWords<kBits> now = words;
    if (block + 1 < num_blocks)
      words =
          load_strip<kBits>(job.w.strip(begin + block + 1, group, warp), job.w.tile_stride, window);
    multiply_strip<kBits, kColumnTiles>(
        now, window, bits, job.w.codebook,
        reinterpret_cast<const uint2*>(fragments + block * kColumnTiles * kFragmentWords), lane,
        sums);
  }

  // partials: [group][row][slice][128]
  float* const partial =
      partials + job.first_partial + int64_t(group) * jobs.num_rows * job.num_slices * 128;
  store_sums<kColumnTiles>(sums, jobs.num_rows, warp, lane, partial + slice * 128,
                           int64_t(job.num_slices) * 128);
  if (!last_to_arrive(counters + job.first_counter + group, unsigned(job.num_slices))) return;
  for (int row = warp; row < jobs.num_rows; row += kExl3Warps) {
    float v[4];
    sum_slices(partial + int64_t(row) * job.num_slices * 128, job.num_slices, 128, lane, v);
    finish_row(v, job.w.svh + group * 128, lane);
    store_4(job.out + row * job.out_stride + group * 128, lane, v);
  }
}

constexpr int kManyHalfBytes = kManyColumnTiles * kFragmentWords * 4 / 2;

template <int kBits>
__global__ __launch_bounds__(kExl3Threads) void exl3_multiply_many_kernel(
    Exl3Items items, const uint2* fragments, int in_blocks, int slice_blocks, float* z) {
  const ExpertItem item = items.item(blockIdx.y);
  if (item.count == 0) return;
  const Exl3Tiles w = items.tiles(item);
  const int group = int(blockIdx.x), lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int bits = kBits > 0 ? kBits : w.bits;
  const LaneWindow window = lane_window(bits, lane);
  std::byte* const shared = dynamic_shared();  // two halves of a block's fragments
  const auto* const source = reinterpret_cast<const std::byte*>(fragments) +
                             int64_t(blockIdx.y) * in_blocks * 2 * kManyHalfBytes;
  const auto fetch = [&](int half) {
    std::byte* const to = shared + half % 2 * kManyHalfBytes;
    const std::byte* const from = source + int64_t(half) * kManyHalfBytes;
    for (int at = 16 * int(threadIdx.x); at < kManyHalfBytes; at += 16 * kExl3Threads)
      async_copy_16(to + at, from + at);
    async_commit();
  };
  const int64_t columns = int64_t(gridDim.x) * 128;
  float* const outputs = z + item.first * columns + int64_t(group) * 128 + 16 * warp;

  fetch(0);
  StripWords<kBits> words = load_strip<kBits>(w.strip(0, group, warp), w.tile_stride, window);
  float sums[kManyColumnTiles][4] = {};
  int in_slice = 0;
  bool first_slice = true;
  for (int block = 0; block < in_blocks; ++block) {
    const StripWords<kBits> now = words;
    if (block + 1 < in_blocks)
      words = load_strip<kBits>(w.strip(block + 1, group, warp), w.tile_stride, window);
    fetch(2 * block + 1);
    async_wait<1>();
    __syncthreads();  // everybody's part of the first half is there
    multiply_strip<kBits, kManyColumnTiles, 0, 4>(
        now, window, bits, w.codebook, reinterpret_cast<const uint2*>(shared), lane, sums);
    __syncthreads();  // it may be overwritten
    if (block + 1 < in_blocks) {
      fetch(2 * block + 2);
      async_wait<1>();
    } else {
      async_wait<0>();
    }
    __syncthreads();
    multiply_strip<kBits, kManyColumnTiles, 4, 8>(
        now, window, bits, w.codebook, reinterpret_cast<const uint2*>(shared + kManyHalfBytes),
        lane, sums);
    __syncthreads();
    if (++in_slice < slice_blocks && block + 1 < in_blocks) continue;
    // A slice ends: its sums are added to what the earlier ones left in memory, by the same thread.
    visit_sums<kManyColumnTiles>(sums, lane, [&](int row, int output, float sum) {
      if (row >= item.count) return;
      float& total = outputs[row * columns + output];
      total = first_slice ? sum : total + sum;
    });
#pragma unroll
    for (int tile = 0; tile < kManyColumnTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[tile][i] = 0;
    }
    first_slice = false;
    in_slice = 0;
  }
}

/// A thread block's part of an item with at most 4 * kColumnTiles rows.
template <int kBits, int kColumnTiles>
__device__ __forceinline__ void gate_up_item(const ExpertsFew& work, const ExpertItem& item,
                                             int item_idx, int unit, int slice, int num_slices) {
  const ExpertTiles& expert = work.experts[item.expert];
  const Exl3Tiles gate = expert.gate, up = expert.up;
  const int begin = slice * work.hidden_slice_blocks;
  const int left = work.hidden_blocks - begin;
  const int num_blocks = left < work.hidden_slice_blocks ? left : work.hidden_slice_blocks;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int gate_bits = kBits > 0 ? kBits : gate.bits, up_bits = kBits > 0 ? kBits : up.bits;
  const LaneWindow gate_window = lane_window(gate_bits, lane);
  const LaneWindow up_window = kBits > 0 ? gate_window : lane_window(up_bits, lane);

  StripWords<kBits> gate_words =
      load_strip<kBits>(gate.strip(begin, unit, warp), gate.tile_stride, gate_window);
  StripWords<kBits> up_words =
      load_strip<kBits>(up.strip(begin, unit, warp), up.tile_stride, up_window);
  constexpr int kBlockWords = kColumnTiles * kFragmentWords;
  // [block][gate, up] fragments
  auto* const fragments = reinterpret_cast<uint32_t*>(dynamic_shared());
  for (int task = warp; task < 2 * item.count * num_blocks; task += kExl3Warps) {
    const int part = task % 2, block = task / 2 % num_blocks, row = task / 2 / num_blocks;
    const int64_t column = int64_t(begin + block) * 128;
    prepare_row(work.x + work.slot_token[item.first + row] * work.x_stride + column,
                (part == 0 ? gate.suh : up.suh) + column, lane,
                fragments + (2 * block + part) * kBlockWords, kColumnTiles, row);
  }
  __syncthreads();

  float gate_sums[kColumnTiles][4] = {}, up_sums[kColumnTiles][4] = {};
  for (int block = 0; block < num_blocks; ++block) {
    const auto* const b = reinterpret_cast<const uint2*>(fragments + 2 * block * kBlockWords);
    const bool more = block + 1 < num_blocks;
    // One strip is always under way while the other is multiplied.
    multiply_strip<kBits, kColumnTiles>(gate_words, gate_window, gate_bits, gate.codebook, b, lane,
                                        gate_sums);
    if (more)
      gate_words = load_strip<kBits>(gate.strip(begin + block + 1, unit, warp), gate.tile_stride,
                                     gate_window);
    multiply_strip<kBits, kColumnTiles>(up_words, up_window, up_bits, up.codebook,
                                        b + kBlockWords / 2, lane, up_sums);
    if (more)
      up_words =
          load_strip<kBits>(up.strip(begin + block + 1, unit, warp), up.tile_stride, up_window);
  }

  const int64_t unit_floats = int64_t(num_slices) * 256;  // of one slot
  const int64_t slot_floats = work.num_units * unit_floats;
  float* const partial = work.gate_partials + item.first * slot_floats + unit * unit_floats;
  store_sums<kColumnTiles>(gate_sums, item.count, warp, lane, partial + slice * 256, slot_floats);
  store_sums<kColumnTiles>(up_sums, item.count, warp, lane, partial + slice * 256 + 128,
                           slot_floats);
  if (!last_to_arrive(work.counters + item_idx * work.num_units + unit, unsigned(num_slices)))
    return;
  for (int row = warp; row < item.count; row += kExl3Warps) {
    float g[4], u[4], scale[4];
    sum_slices(partial + row * slot_floats, num_slices, 256, lane, g);
    sum_slices(partial + row * slot_floats + 128, num_slices, 256, lane, u);
    finish_row(g, gate.svh + unit * 128, lane);
    finish_row(u, up.svh + unit * 128, lane);
    load_scales(expert.down.suh + unit * 128, lane, scale);
    const float weight = work.slot_weight[item.first + row];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      g[i] = __fmul_rn(swiglu_value(g[i], u[i], work.swiglu_limit, weight), scale[i]);
    hadamard_128(g, lane);
    store_fragment_row(work.hidden + (int64_t(item_idx) * work.num_units + unit) * kFewColumnTiles *
                                         kFragmentWords,
                       kColumnTiles, row, lane, g);
  }
}

template <int kBits>
__global__ __launch_bounds__(kExl3Threads, 3) void exl3_experts_gate_up_kernel(ExpertsFew work) {
  const int num_slices =
      (work.hidden_blocks + work.hidden_slice_blocks - 1) / work.hidden_slice_blocks;
  const int slice = int(blockIdx.x) % num_slices;
  const int unit = int(blockIdx.x) / num_slices % work.num_units;
  const int item_idx = int(blockIdx.x) / num_slices / work.num_units;
  if (item_idx >= *work.num_items) return;
  const ExpertItem item = work.items[item_idx];
  if (item.count <= 4)
    gate_up_item<kBits, 1>(work, item, item_idx, unit, slice, num_slices);
  else
    gate_up_item<kBits, kFewColumnTiles>(work, item, item_idx, unit, slice, num_slices);
}

/// A thread block's part of an item with at most 4 * kColumnTiles rows.
template <int kBits, int kColumnTiles>
__device__ __forceinline__ void down_item(const ExpertsFew& work, const ExpertItem& item,
                                          int item_idx, int num_items, int group, int slice,
                                          int num_slices) {
  constexpr int kBlockWords = kColumnTiles * kFragmentWords;
  const Exl3Tiles down = work.experts[item.expert].down;
  const int begin = slice * work.unit_slice_blocks;
  const int left = work.num_units - begin;
  const int num_blocks = left < work.unit_slice_blocks ? left : work.unit_slice_blocks;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int bits = kBits > 0 ? kBits : down.bits;
  const LaneWindow window = lane_window(bits, lane);

  StripWords<kBits> words =
      load_strip<kBits>(down.strip(begin, group, warp), down.tile_stride, window);
  auto* const fragments = reinterpret_cast<uint2*>(dynamic_shared());
  for (int block = 0; block < num_blocks; ++block) {
    const auto* const hidden = reinterpret_cast<const uint2*>(
        work.hidden +
        (int64_t(item_idx) * work.num_units + begin + block) * kFewColumnTiles * kFragmentWords);
    for (int at = int(threadIdx.x); at < kBlockWords / 2; at += kExl3Threads)
      fragments[block * kBlockWords / 2 + at] = hidden[at];
  }
  __syncthreads();

  float sums[kColumnTiles][4] = {};
  for (int block = 0; block < num_blocks; ++block) {
    const StripWords<kBits> now = words;
    if (block + 1 < num_blocks)
      words =
          load_strip<kBits>(down.strip(begin + block + 1, group, warp), down.tile_stride, window);
    multiply_strip<kBits, kColumnTiles>(now, window, bits, down.codebook,
                                        fragments + block * kBlockWords / 2, lane, sums);
  }

  const int64_t group_floats = int64_t(num_slices) * 128;  // of one slot
  const int64_t slot_floats = work.hidden_blocks * group_floats;
  float* const partial = work.down_partials + item.first * slot_floats + group * group_floats;
  store_sums<kColumnTiles>(sums, item.count, warp, lane, partial + slice * 128, slot_floats);
  unsigned* const item_counters = work.counters + int64_t(work.max_items) * work.num_units;
  if (!last_to_arrive(item_counters + item_idx * work.hidden_blocks + group, unsigned(num_slices)))
    return;
  const int64_t hidden_size = int64_t(work.hidden_blocks) * 128;
  for (int row = warp; row < item.count; row += kExl3Warps) {
    float v[4];
    sum_slices(partial + row * slot_floats, num_slices, 128, lane, v);
    finish_row(v, down.svh + group * 128, lane);
    store_4(work.expert_out + (item.first + row) * hidden_size + group * 128, lane, v);
  }
  // The last expert of this group of outputs adds all of them up.
  unsigned* const group_counters = item_counters + int64_t(work.max_items) * work.hidden_blocks;
  if (!last_to_arrive(group_counters + group, unsigned(num_items))) return;
  for (int token = warp; token < work.num_tokens; token += kExl3Warps) {
    float* const out = work.out + token * work.out_stride + group * 128;
    float v[4], next[4];
    load_4(out, lane, v);
    for (int k = 0; k < work.experts_per_token; ++k) {
      const int64_t slot = work.choice_slot[token * work.experts_per_token + k];
      load_4_shared_by_blocks(work.expert_out + slot * hidden_size + group * 128, lane, next);
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] += next[i];
    }
    store_4(out, lane, v);
  }
}

template <int kBits>
__global__ __launch_bounds__(kExl3Threads, 4) void exl3_experts_down_kernel(ExpertsFew work) {
  const int num_slices = (work.num_units + work.unit_slice_blocks - 1) / work.unit_slice_blocks;
  const int slice = int(blockIdx.x) % num_slices;
  const int group = int(blockIdx.x) / num_slices % work.hidden_blocks;
  const int item_idx = int(blockIdx.x) / num_slices / work.hidden_blocks;
  const int num_items = *work.num_items;
  if (item_idx >= num_items) return;
  const ExpertItem item = work.items[item_idx];
  if (item.count <= 4)
    down_item<kBits, 1>(work, item, item_idx, num_items, group, slice, num_slices);
  else
    down_item<kBits, kFewColumnTiles>(work, item, item_idx, num_items, group, slice, num_slices);
}

template <int kBits>
__global__ __launch_bounds__(kExl3Threads) void exl3_reconstruct_kernel(Exl3Tiles w,
                                                                        uint16_t* out) {
  const int in_block = int(blockIdx.x), group = int(blockIdx.y);
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int bits = kBits > 0 ? kBits : w.bits;
  const LaneWindow window = lane_window(bits, lane);
  const int64_t in_features = int64_t(gridDim.x) * 128;
  const StripWords<kBits> words =
      load_strip<kBits>(w.strip(in_block, group, warp), w.tile_stride, window);
  // A lane holds inputs 2q, 2q+1, 2q+8, 2q+9 of outputs g and g + 8. A warp's 16 rows of 128 are
  // put together in shared memory, padded so that neither side meets a bank twice, and leave it 16
  // bytes a lane.
  constexpr int kRowWords = 64 + 4;
  __shared__ uint32_t all_rows[kExl3Warps][16 * kRowWords];
  uint32_t* const rows = all_rows[warp];
  uint32_t* const own = rows + lane / 4 * kRowWords + lane % 4;
#pragma unroll(kBits > 0 ? 8 : 1)
  for (int tile = 0; tile < 8; ++tile) {
    uint32_t a[4];
    decode_tile<kBits>(words, tile, window, bits, w.codebook, a);
    own[8 * tile] = a[0];
    own[8 * tile + 4] = a[2];
    own[8 * kRowWords + 8 * tile] = a[1];
    own[8 * kRowWords + 8 * tile + 4] = a[3];
  }
  __syncwarp();
  uint16_t* const to =
      out + (int64_t(group) * 128 + warp * 16) * in_features + int64_t(in_block) * 128;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = 2 * i + lane / 16, word = lane % 16 * 4;
    const uint4 values =
        make_uint4(rows[row * kRowWords + word], rows[row * kRowWords + word + 1],
                   rows[row * kRowWords + word + 2], rows[row * kRowWords + word + 3]);
    *reinterpret_cast<uint4*>(to + row * in_features + 2 * word) = values;
  }
}

template <int kBits>
void Exl3Kernels<kBits>::linear_few(const Exec& exec, const Exl3Jobs& jobs, float* partials,
                                    unsigned* counters) {
  int most_blocks = 0;
  for (int i = 0; i < jobs.num_jobs; ++i)
    most_blocks = jobs.job[i].slice_blocks > most_blocks ? jobs.job[i].slice_blocks : most_blocks;
  const int tiles = column_tiles(jobs.num_rows);
  const size_t shared_bytes = size_t(most_blocks) * size_t(tiles) * kFragmentWords * 4;
  const auto kernel = tiles == 1   ? exl3_linear_few_kernel<kBits, 1>
                      : tiles == 2 ? exl3_linear_few_kernel<kBits, 2>
                                   : exl3_linear_few_kernel<kBits, 4>;
  launch(exec, dim3(unsigned(jobs.num_blocks)), dim3(kExl3Threads), shared_bytes, kernel, jobs,
         partials, counters);
}

template <int kBits>
void Exl3Kernels<kBits>::multiply_many(const Exec& exec, const Exl3Items& items, int64_t max_items,
                                       const uint2* fragments, int in_blocks, int slice_blocks,
                                       int groups, float* z) {
  launch(exec, dim3(unsigned(groups), unsigned(max_items)), dim3(kExl3Threads),
         size_t(2) * kManyHalfBytes, exl3_multiply_many_kernel<kBits>, items, fragments, in_blocks,
         slice_blocks, z);
}

// A token is in an expert's rows once at most.
inline int most_column_tiles(const ExpertsFew& work) {
  return column_tiles(work.num_tokens < kFewRows ? work.num_tokens : kFewRows);
}

template <int kBits>
void Exl3Kernels<kBits>::experts_gate_up(const Exec& exec, const ExpertsFew& work) {
  const int num_slices =
      (work.hidden_blocks + work.hidden_slice_blocks - 1) / work.hidden_slice_blocks;
  launch(exec, dim3(unsigned(work.max_items * work.num_units * num_slices)), dim3(kExl3Threads),
         size_t(2 * work.hidden_slice_blocks * most_column_tiles(work)) * kFragmentWords * 4,
         exl3_experts_gate_up_kernel<kBits>, work);
}

template <int kBits>
void Exl3Kernels<kBits>::experts_down(const Exec& exec, const ExpertsFew& work) {
  const int num_slices = (work.num_units + work.unit_slice_blocks - 1) / work.unit_slice_blocks;
  launch(exec, dim3(unsigned(work.max_items * work.hidden_blocks * num_slices)), dim3(kExl3Threads),
         size_t(work.unit_slice_blocks * most_column_tiles(work)) * kFragmentWords * 4,
         exl3_experts_down_kernel<kBits>, work);
}

template <int kBits>
void Exl3Kernels<kBits>::reconstruct(const Exec& exec, const Exl3Tiles& tiles, int in_blocks,
                                     int groups, uint16_t* out) {
  launch(exec, dim3(unsigned(in_blocks), unsigned(groups)), dim3(kExl3Threads), 0,
         exl3_reconstruct_kernel<kBits>, tiles, out);
}

}  // namespace onecard::ops::cuda
