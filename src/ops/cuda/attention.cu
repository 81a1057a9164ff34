// Attention over a sliding window, the selected groups and a sink: keys are values, and all heads
// share them. A thread block takes 16 heads of one query and a run of its keys, unpacks them tile
// by tile into shared memory, and keeps a running maximum, sum and weighted sum (Milakov &
// Gimelshein 2018; Dao et al. 2022). With few queries the keys are cut into runs of several thread
// blocks, and the last one of a query's heads joins them in order.
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
constexpr int kMaxRuns = 16;

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

/// Values 4c .. 4c+3 of a packed row; dim is a multiple of 4.
__device__ void unpack_4(const ConstKvRows& row, int64_t c, float* out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(row.data);
  switch (row.format) {
    case KvFormat::kF32:
      for (int i = 0; i < 4; ++i) out[i] = reinterpret_cast<const float*>(bytes)[4 * c + i];
      return;
    case KvFormat::kFp8Block32: {
      const float scale = e8m0_to_f32(bytes[row.dim + c / 8]);
      for (int i = 0; i < 4; ++i) out[i] = e4m3_to_f32(bytes[4 * c + i]) * scale;
      return;
    }
    case KvFormat::kFp4Block32:
    case KvFormat::kFp4Block16: {
      const float scale = row.format == KvFormat::kFp4Block32
                              ? e8m0_to_f32(bytes[row.dim / 2 + c / 8])
                              : e4m3_to_f32(bytes[row.dim / 2 + c / 4]);
      for (int i = 0; i < 4; ++i)
        out[i] = e2m1_to_f32(bytes[2 * c + i / 2] >> (i % 2 * 4) & 15) * scale;
      return;
    }
  }
}

__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

// Lane l holds channels l, l + 32, .. of a head: kPerLane of them. Grid: runs, head groups,
// queries. partials: [query][head][run][dim + 2]: the weighted sum, its maximum, its sum.
template <int kPerLane>
__global__ __launch_bounds__(kThreads) void attention_kernel(View<const float> q,
                                                             int64_t first_position, Keys all_keys,
                                                             const float* sinks, int num_heads,
                                                             View<float> out, float* partials,
                                                             unsigned* counters) {
  constexpr int kWidth = 32 * kPerLane;
  auto* const tile = reinterpret_cast<float*>(dynamic_shared());  // [kTileKeys][kWidth]
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int run = int(blockIdx.x), num_runs = int(gridDim.x);
  const int64_t query = blockIdx.z;
  const int64_t position =
      all_keys.positions != nullptr ? all_keys.positions[query] : first_position + query;
  const Keys keys = all_keys.of_query(query);
  const int first_head = (int(blockIdx.y) * kWarps + warp) * kHeadsPerWarp;
  const int dim = int(keys.rows.chunk.dim);
  const int64_t window_begin = keys.window_start(position);
  const int64_t num_window = position + 1 - window_begin;
  const int64_t num_keys = num_window + (keys.selected != nullptr ? keys.counts[query] : 0);
  const int64_t run_keys =
      ((num_keys + num_runs - 1) / num_runs + kTileKeys - 1) / kTileKeys * kTileKeys;
  const int64_t begin = run * run_keys;
  const int64_t end = begin + run_keys < num_keys ? begin + run_keys : num_keys;
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
    constexpr int kQuads = kWidth / 4;
    for (int at = int(threadIdx.x); at < num * kQuads; at += kThreads) {
      const int j = at / kQuads, c = at % kQuads;
      float values[4] = {};
      if (4 * c + 3 < dim) {
        unpack_4(keys.row(query, window_begin, num_window, first + j), c, values);
      } else {
        const ConstKvRows row = keys.row(query, window_begin, num_window, first + j);
        for (int i = 0; i < 4; ++i)
          if (4 * c + i < dim) values[i] = kv_value(row.format, row.data, dim, 4 * c + i);
      }
      for (int i = 0; i < 4; ++i) tile[j * kWidth + 4 * c + i] = values[i];
    }
    __syncthreads();

    float score[kHeadsPerWarp] = {};  // lane j holds that of key j
    for (int j = 0; j < num; ++j) {
      float dot[kHeadsPerWarp] = {};
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const float value = tile[j * kWidth + lane + 32 * i];
#pragma unroll
        for (int h = 0; h < kHeadsPerWarp; ++h) dot[h] = fmaf(head_q[h][i], value, dot[h]);
      }
#pragma unroll
      for (int h = 0; h < kHeadsPerWarp; ++h) {
        const float sum = warp_sum(dot[h]);
        if (lane == j) score[h] = sum;
      }
    }
#pragma unroll
    for (int h = 0; h < kHeadsPerWarp; ++h) {
      float most = lane < num ? score[h] : -INFINITY;
      for (int distance = 16; distance > 0; distance /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
      most = fmaxf(most, largest[h]);
      const float shrink = expf(largest[h] - most);  // 0 for the first tile
      largest[h] = most;
      score[h] = lane < num ? expf(score[h] - most) : 0.0f;
      total[h] = total[h] * shrink + warp_sum(score[h]);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) sums[h][i] *= shrink;
    }
    for (int j = 0; j < num; ++j) {
      float weight[kHeadsPerWarp];
#pragma unroll
      for (int h = 0; h < kHeadsPerWarp; ++h) weight[h] = __shfl_sync(~0u, score[h], j);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const float value = tile[j * kWidth + lane + 32 * i];
#pragma unroll
        for (int h = 0; h < kHeadsPerWarp; ++h) sums[h][i] = fmaf(weight[h], value, sums[h][i]);
      }
    }
  }

  const auto finish = [&](int h, float most, float sum, const float(&weighted)[kPerLane]) {
    const float sink = sinks[first_head + h];
    const float shift = fmaxf(most, sink);
    const float shrink = expf(most - shift);
    const float factor = shrink / (sum * shrink + expf(sink - shift));
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int c = lane + 32 * i;
      if (c < dim) out.row(query)[int64_t(first_head + h) * dim + c] = weighted[i] * factor;
    }
  };
  if (num_runs == 1) {
    for (int h = 0; h < kHeadsPerWarp; ++h)
      if (first_head + h < num_heads) finish(h, largest[h], total[h], sums[h]);
    return;
  }
  const int64_t stride = dim + 2;
  float* const mine = partials + (query * num_heads + first_head) * num_runs * stride;
  for (int h = 0; h < kHeadsPerWarp; ++h) {
    if (first_head + h >= num_heads) break;
    float* const piece = mine + (int64_t(h) * num_runs + run) * stride;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (lane + 32 * i < dim) piece[lane + 32 * i] = sums[h][i];
    if (lane == 0) {
      piece[dim] = largest[h];
      piece[dim + 1] = total[h];
    }
  }
  if (!last_to_arrive(counters + query * gridDim.y + blockIdx.y, unsigned(num_runs))) return;
  for (int h = 0; h < kHeadsPerWarp; ++h) {
    if (first_head + h >= num_heads) break;
    const float* const pieces = mine + int64_t(h) * num_runs * stride;
    float most = -INFINITY;
    for (int r = 0; r < num_runs; ++r) most = fmaxf(most, __ldcg(pieces + r * stride + dim));
    float sum = 0, weighted[kPerLane] = {};
    for (int r = 0; r < num_runs; ++r) {
      const float* const piece = pieces + r * stride;
      const float factor = expf(__ldcg(piece + dim) - most);  // 0 for an empty run
      sum = fmaf(__ldcg(piece + dim + 1), factor, sum);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (lane + 32 * i < dim)
          weighted[i] = fmaf(__ldcg(piece + lane + 32 * i), factor, weighted[i]);
    }
    finish(h, most, sum, weighted);
  }
}

template <int kPerLane>
void attend(const Exec& exec, View<const float> q, int64_t first_position, const Keys& keys,
            std::span<const float> sinks, int64_t most_keys, View<float> out) {
  const auto num_heads = int64_t(sinks.size());
  const int64_t head_groups = (num_heads + kHeads - 1) / kHeads;
  // Runs where the queries alone leave most of the device idle.
  const int64_t runs =
      std::clamp<int64_t>(std::min(512 / (q.rows * head_groups), most_keys / 32), 1, kMaxRuns);
  ScratchCutter scratch(exec);
  float* partials = nullptr;
  unsigned* counters = nullptr;
  if (runs > 1) {
    partials =
        scratch.take<float>(q.rows * num_heads * runs * (keys.rows.chunk.dim + 2), "attention");
    counters = scratch.counters(q.rows * head_groups, "attention");
  }
  launch(exec, dim3(unsigned(runs), unsigned(head_groups), unsigned(q.rows)), dim3(kThreads),
         size_t(kTileKeys) * 32 * kPerLane * sizeof(float), attention_kernel<kPerLane>, q,
         first_position, keys, sinks.data(), int(num_heads), out, partials, counters);
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
