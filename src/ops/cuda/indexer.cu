#include <algorithm>

#include "ops/cuda/block_sum.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/number_formats.cuh"
#include "ops/indexer.h"

namespace onecard::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct Candidates {
  const int32_t* ids = nullptr;  // null: every group counts
  int64_t stride = 0;
  const int32_t* counts = nullptr;
  int64_t block_size = 1;

  __device__ bool all(int64_t row) const { return ids == nullptr || counts[row] == kAllBlocks; }
  __device__ bool kept(int64_t row, int64_t group) const {
    if (all(row)) return true;
    const int32_t* list = ids + row * stride;
    const int64_t block = group / block_size;
    int low = 0, high = counts[row];
    while (low < high) {
      const int middle = (low + high) / 2;
      if (list[middle] < block)
        low = middle + 1;
      else
        high = middle;
    }
    return low < counts[row] && list[low] == block;
  }
};

Candidates device_candidates(const IndexLists* lists, int64_t block_size) {
  if (lists == nullptr) return {};
  return {lists->ids.data, lists->ids.stride, lists->counts.data(), block_size};
}

// ---- any format and shape: one warp a query and group

__global__ __launch_bounds__(kThreads) void scores_kernel(
    View<const float> q, View<const float> w, ConstKvRows keys, const std::byte* const* key_rows,
    const int64_t* num_visible, Candidates candidates, float scale, View<float> scores) {
  const int lane = int(threadIdx.x) % 32;
  const int64_t row = blockIdx.y, group = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (group >= num_visible[row]) return;
  if (key_rows != nullptr) keys.data = key_rows[row];
  if (!candidates.kept(row, group)) {
    if (lane == 0) scores.row(row)[group] = -INFINITY;
    return;
  }
  float sum = 0;
  for (int64_t h = 0; h < w.cols; ++h) {
    float dot = 0;
    for (int64_t c = lane; c < keys.dim; c += 32)
      dot = fmaf(q.row(row)[h * keys.dim + c], kv_value(keys.format, keys.row(group), keys.dim, c),
                 dot);
    for (int distance = 16; distance > 0; distance /= 2) dot += __shfl_xor_sync(~0u, dot, distance);
    sum = fmaf(w.row(row)[h], fmaxf(dot, 0.0f), sum);
  }
  if (lane == 0) scores.row(row)[group] = sum * scale;
}

// ---- FP4 keys of 128 channels on the tensor cores. A warp scores 16 keys against all heads: the
// keys are the A operand, the query's heads the B operand. Both are on the FP4 grid, so that the
// products are exact. The order of channels inside a product is free: step s, lane quarter q stand
// for channels 32q + 4s .. + 3, so that a lane's part of a key is 16 bytes in a row under one
// scale.

constexpr int kFastDim = 128;
constexpr int kSteps = kFastDim / 16;
constexpr int kMaxHeadTiles = 4;
constexpr int kTilesPerWarp = 8;
constexpr int kGroupsPerBlock = kWarps * kTilesPerWarp * 16;

/// 2^exponent in both halves; what is too small for fp16 is zero, and 2^13 the most.
__device__ uint32_t pow2_f16x2(int exponent) {
  const int e = exponent < 13 ? exponent : 13;
  const uint32_t bits = e >= -14 ? uint32_t(e + 15) << 10 : e >= -24 ? 1u << (e + 24) : 0u;
  return bits | bits << 16;
}

/// Two e2m1 codes in bits 0..7, the first one low, times `scale`.
__device__ uint32_t e2m1_pair(uint32_t codes, uint32_t scale) {
  const uint32_t apart = (codes & 15) | (codes & 0xF0) << 12;
  const uint32_t bits = (apart & 0x00080008u) << 12 | (apart & 0x00070007u) << 9;
  constexpr uint32_t kTwoTo14 = 0x74007400u;  // e2m1's exponent bias is 1, that of fp16 is 15
  return fma_f16x2(fma_f16x2(bits, kTwoTo14, 0), scale, 0);
}

__global__ __launch_bounds__(kThreads) void fast_scores_kernel(
    View<const float> q, View<const float> w, ConstKvRows keys, const std::byte* const* key_rows,
    const int64_t* num_visible, Candidates candidates, float scale, View<float> scores) {
  __shared__ uint2 heads[kSteps * kMaxHeadTiles * 32];
  __shared__ float head_weights[8 * kMaxHeadTiles];
  const int64_t row = blockIdx.y;
  const int64_t visible = num_visible[row];
  const bool all = candidates.all(row);
  // Places count the groups that are scored: all of them, or those of the kept blocks.
  const int64_t num_places =
      all ? visible : int64_t(candidates.counts[row]) * candidates.block_size;
  const int64_t first_place = int64_t(blockIdx.x) * kGroupsPerBlock;
  if (first_place >= num_places) return;
  if (key_rows != nullptr) keys.data = key_rows[row];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int num_tiles = int(w.cols) / 8, quarter = lane % 4;
  for (int at = int(threadIdx.x); at < kSteps * num_tiles * 32; at += kThreads) {
    const int head = at / 32 % num_tiles * 8 + at % 32 / 4, step = at / 32 / num_tiles;
    const float* const from = q.row(row) + head * kFastDim + 32 * (at % 4) + 4 * step;
    heads[at] = make_uint2(pack_f16x2(from[0], from[1]), pack_f16x2(from[2], from[3]));
  }
  for (int h = int(threadIdx.x); h < int(w.cols); h += kThreads) head_weights[h] = w.row(row)[h];
  __syncthreads();

  const auto group_of = [&](int64_t place) -> int64_t {
    if (place >= num_places) return -1;
    if (all) return place;
    const int64_t group = candidates.ids[row * candidates.stride + place / candidates.block_size] *
                              candidates.block_size +
                          place % candidates.block_size;
    return group < visible ? group : -1;
  };
  for (int tile = 0; tile < kTilesPerWarp; ++tile) {
    const int64_t place = first_place + (int64_t(tile) * kWarps + warp) * 16 + lane / 4;
    if (place - lane / 4 >= num_places) break;
    const int64_t group[2] = {group_of(place), group_of(place + 8)};
    uint32_t word[2][4], key_scale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // A key that is not there is read as the first one and not stored.
      const std::byte* const key = keys.row(group[half] < 0 ? 0 : group[half]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        word[half][i] = __ldg(reinterpret_cast<const uint32_t*>(key) + 4 * quarter + i);
      key_scale[half] =
          pow2_f16x2(int(reinterpret_cast<const uint8_t*>(key)[kFastDim / 2 + quarter]) - 127);
    }
    float dots[kMaxHeadTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t codes = word[half][step / 2] >> (step % 2 * 16);
        a[half] = e2m1_pair(codes & 255, key_scale[half]);
        a[half + 2] = e2m1_pair(codes >> 8 & 255, key_scale[half]);
      }
#pragma unroll
      for (int n = 0; n < kMaxHeadTiles; ++n) {
        if (n >= num_tiles) break;
        const uint2 b = heads[(step * num_tiles + n) * 32 + lane];
        mma_16x8x16(dots[n], a, b.x, b.y);
      }
    }
    float sum[2] = {};
#pragma unroll
    for (int n = 0; n < kMaxHeadTiles; ++n) {
      if (n >= num_tiles) break;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sum[i / 2] =
            fmaf(head_weights[8 * n + 2 * quarter + i % 2], fmaxf(dots[n][i], 0.0f), sum[i / 2]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
      if (quarter == 0 && group[half] >= 0) scores.row(row)[group[half]] = sum[half] * scale;
    }
  }
}

/// -inf in front of the scores of kept blocks.
__global__ __launch_bounds__(kThreads) void clear_scores_kernel(const int64_t* num_visible,
                                                                Candidates candidates,
                                                                View<float> scores) {
  const int64_t row = blockIdx.y;
  if (candidates.all(row)) return;
  for (int64_t g = int64_t(blockIdx.x) * kThreads + threadIdx.x; g < num_visible[row];
       g += int64_t(gridDim.x) * kThreads)
    scores.row(row)[g] = -INFINITY;
}

// ---- exact selection: one thread block a row. Three rounds of counting the digits of the scores'
// ordered bits find the k-th highest; a last round lists what is above it and, by lower index, as
// many equals as there is room for.

constexpr int kSelectThreads = 1024;
constexpr int kDigits = 2048;
constexpr int kPerThread = 4;

/// f32 as an unsigned number of the same order; -0 as +0.
__device__ uint32_t ordered_key(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// With kBlocks a row is one of blocks of `block_size` groups, and short rows are kept whole.
template <bool kBlocks>
__global__ __launch_bounds__(kSelectThreads) void select_kernel(View<const float> scores,
                                                                const int64_t* num_visible,
                                                                int64_t block_size,
                                                                View<int32_t> ids,
                                                                int32_t* counts) {
  __shared__ int digit_count[kDigits];
  __shared__ int chosen_digit, chosen_above;
  const int64_t row_idx = blockIdx.x;
  const float* const row = scores.row(row_idx);
  const int64_t n =
      kBlocks ? (num_visible[row_idx] + block_size - 1) / block_size : num_visible[row_idx];
  const int k = int(ids.cols);
  int32_t* const list = ids.row(row_idx);
  const int thread = int(threadIdx.x);
  if (kBlocks && n <= k) {
    if (thread == 0) counts[row_idx] = kAllBlocks;
    return;
  }

  uint32_t threshold = 0, known = 0;
  int num_above = 0;
  bool everything = false;
  const int shifts[3] = {21, 10, 0}, widths[3] = {11, 11, 10};
  for (int round = 0; round < 3; ++round) {
    const uint32_t digit_mask = (1u << widths[round]) - 1;
    for (int d = thread; d < kDigits; d += kSelectThreads) digit_count[d] = 0;
    __syncthreads();
    int available = 0;
    for (int64_t g = thread; g < n; g += kSelectThreads) {
      const float score = row[g];
      const uint32_t key = ordered_key(score);
      if (!(score > -INFINITY)) continue;
      ++available;
      if ((key & known) == threshold) atomicAdd(&digit_count[key >> shifts[round] & digit_mask], 1);
    }
    __syncthreads();
    if (round == 0) {
      int total = 0;
      block_scan<kSelectThreads>(available, total);
      if (total <= k) {
        everything = true;
        break;
      }
    }
    // Digits from the highest down, two a thread.
    const int high = kDigits - 1 - 2 * thread;
    const int high_count = digit_count[high], low_count = digit_count[high - 1];
    int total = 0;
    const int above = num_above + block_scan<kSelectThreads>(high_count + low_count, total);
    if (above < k && above + high_count >= k) {
      chosen_digit = high;
      chosen_above = above;
    } else if (above + high_count < k && above + high_count + low_count >= k) {
      chosen_digit = high - 1;
      chosen_above = above + high_count;
    }
    __syncthreads();
    threshold |= uint32_t(chosen_digit) << shifts[round];
    num_above = chosen_above;
    known |= digit_mask << shifts[round];
    __syncthreads();
  }

  const int ties_wanted = k - num_above;
  int above_before = 0, ties_before = 0;  // in the chunks so far
  for (int64_t begin = 0; begin < n; begin += kSelectThreads * kPerThread) {
    int above = 0, ties = 0;  // of this thread, a bit an element
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t g = begin + thread * kPerThread + i;
      if (g >= n || !(row[g] > -INFINITY)) continue;
      const uint32_t key = ordered_key(row[g]);
      if (everything || key > threshold)
        above |= 1 << i;
      else if (key == threshold)
        ties |= 1 << i;
    }
    // Both counts in one scan: at most 4096 elements a chunk.
    int total = 0;
    const int before =
        block_scan<kSelectThreads>(__popc(unsigned(above)) | __popc(unsigned(ties)) << 16, total);
    int num_above_here = above_before + (before & 0xFFFF);
    int num_ties_here = ties_before + (before >> 16);
    for (int i = 0; i < kPerThread; ++i) {
      const bool is_above = (above >> i & 1) != 0, is_tie = (ties >> i & 1) != 0;
      if (is_above || (is_tie && num_ties_here < ties_wanted))
        list[num_above_here + (num_ties_here < ties_wanted ? num_ties_here : ties_wanted)] =
            int32_t(begin + thread * kPerThread + i);
      num_above_here += is_above ? 1 : 0;
      num_ties_here += is_tie ? 1 : 0;
    }
    above_before += total & 0xFFFF;
    ties_before += total >> 16;
  }
  if (thread == 0)
    counts[row_idx] = everything
                          ? above_before
                          : above_before + (ties_before < ties_wanted ? ties_before : ties_wanted);
}

/// The best score of each block; +inf for the block of the newest group.
__global__ __launch_bounds__(kThreads) void block_scores_kernel(View<const float> scores,
                                                                const int64_t* num_visible,
                                                                int64_t block_size,
                                                                View<float> block_scores) {
  const int64_t row = blockIdx.y, visible = num_visible[row];
  const int64_t num_blocks = (visible + block_size - 1) / block_size;
  const int64_t block = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (block >= num_blocks) return;
  const int64_t end = (block + 1) * block_size < visible ? (block + 1) * block_size : visible;
  float best = scores.row(row)[block * block_size];
  for (int64_t g = block * block_size + 1; g < end; ++g) {
    const float score = scores.row(row)[g];
    if (best < score) best = score;
  }
  block_scores.row(row)[block] = block == num_blocks - 1 ? INFINITY : best;
}

}  // namespace

void indexer_scores(const Exec& exec, View<const float> q, View<const float> w,
                    const ConstKvRows& keys, const std::byte* const* key_rows,
                    std::span<const int64_t> num_visible, const IndexLists* candidates,
                    int64_t block_size, View<float> scores) {
  const float scale = float(1.0 / sqrt(double(w.cols * keys.dim)));
  const Candidates kept = device_candidates(candidates, block_size);
  const bool fast = keys.format == KvFormat::kFp4Block32 && keys.dim == kFastDim &&
                    w.cols % 8 == 0 && w.cols <= 8 * kMaxHeadTiles && keys.stride_bytes % 4 == 0;
  if (scores.cols == 0 || q.rows == 0) return;
  const auto rows = unsigned(q.rows);
  if (!fast)
    return launch(exec, dim3(unsigned((scores.cols + kWarps - 1) / kWarps), rows), dim3(kThreads),
                  0, scores_kernel, q, w, keys, key_rows, num_visible.data(), kept, scale, scores);
  if (candidates != nullptr)
    launch(exec, dim3(unsigned(std::min<int64_t>(256, (scores.cols + 1023) / 1024)), rows),
           dim3(kThreads), 0, clear_scores_kernel, num_visible.data(), kept, scores);
  launch(exec, dim3(unsigned((scores.cols + kGroupsPerBlock - 1) / kGroupsPerBlock), rows),
         dim3(kThreads), 0, fast_scores_kernel, q, w, keys, key_rows, num_visible.data(), kept,
         scale, scores);
}

void select_top_k(const Exec& exec, View<const float> scores, std::span<const int64_t> num_visible,
                  const IndexLists& out) {
  launch(exec, dim3(unsigned(scores.rows)), dim3(kSelectThreads), 0, select_kernel<false>, scores,
         num_visible.data(), int64_t{1}, out.ids, out.counts.data());
}

void select_candidate_blocks(const Exec& exec, View<const float> scores,
                             std::span<const int64_t> num_visible, int64_t block_size,
                             View<float> block_scores, const IndexLists& out) {
  const int64_t most_blocks = (scores.cols + block_size - 1) / block_size;
  launch(exec, dim3(unsigned((most_blocks + kThreads - 1) / kThreads), unsigned(scores.rows)),
         dim3(kThreads), 0, block_scores_kernel, scores, num_visible.data(), block_size,
         block_scores);
  launch(exec, dim3(unsigned(scores.rows)), dim3(kSelectThreads), 0, select_kernel<true>,
         View<const float>(block_scores), num_visible.data(), block_size, out.ids,
         out.counts.data());
}

}  // namespace onecard::ops::cuda
