// Attention over a sliding window, the selected groups and a sink: keys are values, and all heads
// share them. A thread block takes 16 heads of one query and its keys 16 at a time: a tile is
// unpacked into shared memory, has a softmax of its own, and joins those before it in order
// (Milakov & Gimelshein 2018; Dao et al. 2022). With few queries every tile has thread blocks of
// its own, and a second kernel joins them in the same order, to the same bits.
#include <algorithm>

#include "ops/attention.h"
#include "ops/cuda/exl3_tile.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/number_formats.cuh"
#include "ops/cuda/scratch.cuh"

namespace onecard::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kHeadsPerWarp = 2;
constexpr int kHeads = kWarps * kHeadsPerWarp;
constexpr int kTileKeys = 16;
constexpr int kCombineThreads = 128;

struct Keys {
  AttentionKeys rows;
  // Of queries of several sequences; else null.
  const int64_t* positions = nullptr;
  const std::byte* const* rings = nullptr;
  const std::byte* const* globals = nullptr;
  const int32_t* selected = nullptr;  // null: the window alone
  int64_t selected_stride = 0;
  const int32_t* counts = nullptr;

  __device__ int64_t window_start(int64_t position) const {
    const int64_t start = position - rows.window + 1;
    const int64_t begin = rows.window_begin > start ? rows.window_begin : start;
    return begin > 0 ? begin : 0;
  }
  /// The same for the query of row `query` alone.
  __device__ Keys of_query(int64_t query) const {
    Keys own = *this;
    if (positions != nullptr) {
      own.rows.ring.data = rings[query];
      own.rows.chunk_begin = positions[query] + 1;
      if (globals != nullptr) own.rows.global.data = globals[query];
    }
    return own;
  }
  /// Row j of what the query of row `query` at `position` sees, the window first.
  __device__ ConstKvRows row(int64_t query, int64_t window_begin, int64_t num_window,
                             int64_t j) const {
    ConstKvRows found = rows.chunk;
    if (j < num_window) {
      const int64_t p = window_begin + j;
      if (p >= rows.chunk_begin) {
        found.data = rows.chunk.row(p - rows.chunk_begin);
      } else {
        found = rows.ring;
        found.data = rows.ring.row(p % rows.num_ring_rows);
      }
    } else {
      found = rows.global;
      found.data = rows.global.row(selected[query * selected_stride + (j - num_window)]);
    }
    return found;
  }
};

/// Values 8c .. 8c+7 of a packed row; dim is a multiple of 8.
__device__ __forceinline__ void unpack_8(KvFormat format, const std::byte* row, int dim, int c,
                                         float (&out)[8]) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(row);
  if (format == KvFormat::kF32) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = reinterpret_cast<const float*>(row)[8 * c + i];
  } else if (format == KvFormat::kFp8Block32) {
    uint2 codes{};
    if ((reinterpret_cast<uintptr_t>(row) & 7) == 0)
      codes = reinterpret_cast<const uint2*>(row)[c];
    else
      for (int i = 0; i < 8; ++i)
        (i < 4 ? codes.x : codes.y) |= uint32_t(bytes[8 * c + i]) << i % 4 * 8;
    const float scale = e8m0_to_f32(bytes[dim + c / 4]);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      out[i] = e4m3_to_f32(uint8_t((i < 4 ? codes.x : codes.y) >> i % 4 * 8)) * scale;
  } else {
    uint32_t codes = 0;
    if ((reinterpret_cast<uintptr_t>(row) & 3) == 0)
      codes = reinterpret_cast<const uint32_t*>(row)[c];
    else
      for (int i = 0; i < 4; ++i) codes |= uint32_t(bytes[4 * c + i]) << i * 8;
    const float scale = format == KvFormat::kFp4Block32 ? e8m0_to_f32(bytes[dim / 2 + c / 4])
                                                        : e4m3_to_f32(bytes[dim / 2 + c / 2]);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = e2m1_to_f32(codes >> i * 4 & 15) * scale;
  }
}

/// Joins what later keys give, by their own largest score, to what earlier ones gave.
struct Join {
  float most, before, after;  // the new largest score, and the factors of both
  __device__ Join(float earlier, float later)
      : most(fmaxf(earlier, later)), before(expf(earlier - most)), after(expf(later - most)) {}
  __device__ float operator()(float earlier, float later) const {
    return fmaf(earlier, before, __fmul_rn(later, after));
  }
};

/// What the weighted sums are multiplied by in the end.
__device__ float last_factor(float most, float total, float sink) {
  const float shift = fmaxf(most, sink);
  const float shrink = expf(most - shift);
  return shrink / (total * shrink + expf(sink - shift));
}

/// values[0] of lane l becomes the sum of values[l] over the warp; halves are exchanged, not whole.
template <int kStep>
__device__ __forceinline__ void sum_to_lanes(float (&values)[32], int lane) {
  const bool upper = (lane & kStep) != 0;
#pragma unroll
  for (int k = 0; k < kStep; ++k) {
    const float sent = upper ? values[k] : values[k + kStep];
    const float kept = upper ? values[k + kStep] : values[k];
    values[k] = kept + __shfl_xor_sync(~0u, sent, kStep);
  }
  if constexpr (kStep > 1) sum_to_lanes<kStep / 2>(values, lane);
}

// Lane l holds channels l, l + 32, .. of a head: kPerLane of them. Grid: tiles, head groups,
// queries; a single tile of the grid stands for all. partials: null, or [query][head][tile][dim +
// 2]: the weighted sums, the largest score, the sum; a tile without keys has -inf alone.
template <int kPerLane>
__global__ __launch_bounds__(kThreads) void attention_kernel(View<const float> q,
                                                             int64_t first_position, Keys all_keys,
                                                             const float* sinks, int num_heads,
                                                             View<float> out, float* partials) {
  constexpr int kWidth = 32 * kPerLane;
  auto* const tile = reinterpret_cast<float*>(dynamic_shared());  // [kTileKeys][kWidth]
  __shared__ const std::byte* row_data[kTileKeys];
  __shared__ KvFormat row_format[kTileKeys];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int64_t query = blockIdx.z;
  const int64_t position =
      all_keys.positions != nullptr ? all_keys.positions[query] : first_position + query;
  const Keys keys = all_keys.of_query(query);
  const int first_head = (int(blockIdx.y) * kWarps + warp) * kHeadsPerWarp;
  const int dim = int(keys.rows.chunk.dim);
  const int64_t window_begin = keys.window_start(position);
  const int64_t num_window = position + 1 - window_begin;
  const int64_t num_keys = num_window + (keys.selected != nullptr ? keys.counts[query] : 0);
  const int64_t begin = partials != nullptr ? int64_t(blockIdx.x) * kTileKeys : 0;
  const int64_t end =
      partials == nullptr || begin + kTileKeys > num_keys ? num_keys : begin + kTileKeys;
  const float scale = 1.0f / sqrtf(float(dim));

  float head_q[kHeadsPerWarp][kPerLane], sums[kHeadsPerWarp][kPerLane] = {};
  float largest[kHeadsPerWarp], total[kHeadsPerWarp] = {};
#pragma unroll
  for (int h = 0; h < kHeadsPerWarp; ++h) {
    largest[h] = -INFINITY;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int c = lane + 32 * i;
      head_q[h][i] = first_head + h < num_heads && c < dim
                         ? q.row(query)[int64_t(first_head + h) * dim + c] * scale
                         : 0.0f;
    }
  }

  for (int64_t first = begin; first < end; first += kTileKeys) {
    const int num = int(end - first < kTileKeys ? end - first : kTileKeys);
    __syncthreads();  // the tile before has been used
    if (int(threadIdx.x) < num) {
      const ConstKvRows row = keys.row(query, window_begin, num_window, first + threadIdx.x);
      row_data[threadIdx.x] = row.data;
      row_format[threadIdx.x] = row.format;
    }
    __syncthreads();
    constexpr int kUnits = kWidth / 8;
#pragma unroll 4
    for (int at = int(threadIdx.x); at < kTileKeys * kUnits; at += kThreads) {
      const int j = at / kUnits, c = at % kUnits;
      float values[8] = {};  // what is not there counts as zero
      if (j < num && dim % 8 == 0 && 8 * c < dim) {
        unpack_8(row_format[j], row_data[j], dim, c, values);
      } else if (j < num) {
        for (int i = 0; i < 8; ++i)
          if (8 * c + i < dim) values[i] = kv_value(row_format[j], row_data[j], dim, 8 * c + i);
      }
      auto* const to = reinterpret_cast<float4*>(tile + j * kWidth + 8 * c);
      to[0] = make_float4(values[0], values[1], values[2], values[3]);
      to[1] = make_float4(values[4], values[5], values[6], values[7]);
    }
    __syncthreads();

    // dots[16 h + j]: the lane's part of head h and key j; then lane 16 h + j has all of it.
    float dots[kHeadsPerWarp * kTileKeys] = {};
#pragma unroll
    for (int j = 0; j < kTileKeys; ++j) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const float value = tile[j * kWidth + lane + 32 * i];
#pragma unroll
        for (int h = 0; h < kHeadsPerWarp; ++h)
          dots[h * kTileKeys + j] = fmaf(head_q[h][i], value, dots[h * kTileKeys + j]);
      }
    }
    static_assert(kHeadsPerWarp * kTileKeys == 32);
    sum_to_lanes<16>(dots, lane);
    const bool counts = lane % kTileKeys < num;
    float most = counts ? dots[0] : -INFINITY;
    for (int distance = kTileKeys / 2; distance > 0; distance /= 2)
      most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
    const float weight = counts ? expf(dots[0] - most) : 0.0f;
    float sum = weight;
    for (int distance = kTileKeys / 2; distance > 0; distance /= 2)
      sum += __shfl_xor_sync(~0u, sum, distance);

    float weighted[kHeadsPerWarp][kPerLane] = {};
#pragma unroll
    for (int j = 0; j < kTileKeys; ++j) {
      float key_weight[kHeadsPerWarp];
#pragma unroll
      for (int h = 0; h < kHeadsPerWarp; ++h)
        key_weight[h] = __shfl_sync(~0u, weight, h * kTileKeys + j);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const float value = tile[j * kWidth + lane + 32 * i];
#pragma unroll
        for (int h = 0; h < kHeadsPerWarp; ++h)
          weighted[h][i] = fmaf(key_weight[h], value, weighted[h][i]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeadsPerWarp; ++h) {
      const float tile_most = __shfl_sync(~0u, most, h * kTileKeys);
      const float tile_sum = __shfl_sync(~0u, sum, h * kTileKeys);
      const Join join(largest[h], tile_most);
      largest[h] = join.most;
      total[h] = join(total[h], tile_sum);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) sums[h][i] = join(sums[h][i], weighted[h][i]);
    }
  }

#pragma unroll
  for (int h = 0; h < kHeadsPerWarp; ++h) {
    if (first_head + h >= num_heads) break;
    const int64_t head = first_head + h;
    if (partials == nullptr) {
      const float factor = last_factor(largest[h], total[h], sinks[head]);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (lane + 32 * i < dim) out.row(query)[head * dim + lane + 32 * i] = sums[h][i] * factor;
      continue;
    }
    float* const piece =
        partials + ((query * num_heads + head) * gridDim.x + blockIdx.x) * (dim + 2);
    if (lane == 0) {
      piece[dim] = largest[h];
      piece[dim + 1] = total[h];
    }
    if (begin >= end) continue;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (lane + 32 * i < dim) piece[lane + 32 * i] = sums[h][i];
  }
}

// Grid: channels by kCombineThreads, heads, queries.
__global__ __launch_bounds__(kCombineThreads) void combine_kernel(const float* partials,
                                                                  int num_tiles, int dim,
                                                                  const float* sinks,
                                                                  View<float> out) {
  const int c = int(blockIdx.x) * kCombineThreads + int(threadIdx.x);
  const int64_t head = blockIdx.y, query = blockIdx.z;
  if (c >= dim) return;
  const float* const pieces = partials + (query * gridDim.y + head) * num_tiles * (dim + 2);
  float largest = -INFINITY, total = 0, sum = 0;
#pragma unroll 8
  for (int t = 0; t < num_tiles; ++t) {
    const float* const piece = pieces + int64_t(t) * (dim + 2);
    const float most = piece[dim], tile_total = piece[dim + 1], value = piece[c];
    if (most == -INFINITY) continue;
    const Join join(largest, most);
    largest = join.most;
    total = join(total, tile_total);
    sum = join(sum, value);
  }
  out.row(query)[head * dim + c] = sum * last_factor(largest, total, sinks[head]);
}

template <int kPerLane>
void attend(const Exec& exec, View<const float> q, int64_t first_position, const Keys& keys,
            std::span<const float> sinks, int64_t most_keys, View<float> out) {
  const auto num_heads = int64_t(sinks.size());
  const int64_t head_groups = (num_heads + kHeads - 1) / kHeads, dim = keys.rows.chunk.dim;
  // Thread blocks of their own for tiles where the queries alone leave most of the device idle.
  const int64_t num_tiles = (most_keys + kTileKeys - 1) / kTileKeys;
  const int64_t num_partials = q.rows * num_heads * num_tiles * (dim + 2);
  ScratchCutter scratch(exec);
  const bool apart = num_tiles > 1 && q.rows * head_groups <= 64 &&
                     num_partials * int64_t(sizeof(float)) < scratch.left_bytes();
  float* const partials = apart ? scratch.take<float>(num_partials, "attention") : nullptr;
  launch(exec, dim3(unsigned(apart ? num_tiles : 1), unsigned(head_groups), unsigned(q.rows)),
         dim3(kThreads), size_t(kTileKeys) * 32 * kPerLane * sizeof(float),
         attention_kernel<kPerLane>, q, first_position, keys, sinks.data(), int(num_heads), out,
         partials);
  if (apart)
    launch(exec,
           dim3(unsigned((dim + kCombineThreads - 1) / kCombineThreads), unsigned(num_heads),
                unsigned(q.rows)),
           dim3(kCombineThreads), 0, combine_kernel, partials, int(num_tiles), int(dim),
           sinks.data(), out);
}

void attend_any(const Exec& exec, View<const float> q, int64_t first_position, Keys keys,
                const IndexLists* selected, std::span<const float> sinks, View<float> out) {
  const int64_t dim = keys.rows.chunk.dim;
  require(dim <= 512, ErrorCode::kUnsupported, "attention: heads of at most 512 channels on CUDA");
  int64_t most_keys = keys.rows.window;
  if (selected != nullptr) {
    keys.selected = selected->ids.data;
    keys.selected_stride = selected->ids.stride;
    keys.counts = selected->counts.data();
    most_keys += selected->ids.cols;
  }
  const auto run = [&](auto attend_width) {
    attend_width(exec, q, first_position, keys, sinks, most_keys, out);
  };
  if (dim <= 32)
    run(attend<1>);
  else if (dim <= 64)
    run(attend<2>);
  else if (dim <= 128)
    run(attend<4>);
  else if (dim <= 256)
    run(attend<8>);
  else
    run(attend<16>);
}

}  // namespace

void attention(const Exec& exec, View<const float> q, int64_t first_position,
               const AttentionKeys& rows, const IndexLists* selected, std::span<const float> sinks,
               View<float> out) {
  constexpr int64_t kMaxRows = 65535;
  for (int64_t begin = 0; begin < q.rows; begin += kMaxRows) {
    const int64_t end = std::min(q.rows, begin + kMaxRows);
    IndexLists lists;
    if (selected != nullptr) lists = selected->rows_between(begin, end);
    attend_any(exec, q.rows_between(begin, end), first_position + begin, {rows},
               selected != nullptr ? &lists : nullptr, sinks, out.rows_between(begin, end));
  }
}

void attention_each(const Exec& exec, View<const float> q, const EachKeys& each,
                    const IndexLists* selected, std::span<const float> sinks, View<float> out) {
  Keys keys;
  keys.rows.ring = keys.rows.chunk = each.ring;  // all rows come from the ring
  keys.rows.num_ring_rows = each.num_ring_rows;
  keys.rows.window = each.window;
  keys.rows.global = each.global;
  keys.positions = each.positions.data();
  keys.rings = each.rings.data();
  keys.globals = selected != nullptr ? each.globals.data() : nullptr;
  attend_any(exec, q, 0, keys, selected, sinks, out);
}

}  // namespace onecard::ops::cuda
