#include <algorithm>

#include "ops/cuda/block_sum.cuh"
#include "ops/cuda/exl3_tile.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/scratch.cuh"
#include "ops/hyper_connection.h"

namespace onecard::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTokens = 4;     // that share a read of fn
constexpr int kColumns = 512;  // of a thread block
constexpr int kMaxStreams = 8;

struct Site {
  View<const float> fn;
  const float* base;
  const float* scale;
  int sinkhorn_iters;
  float hc_eps, norm_eps;
};

__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/// From the mixed products of a token to its coefficients, by one warp, for any n. Lane i < n keeps
/// row i of comb in registers; columns are summed by shuffles over the first 8 lanes.
__device__ void coefficients_of_any(const float* m, const Site& site, int n, int lane, float* pre,
                                    float* post, float* comb) {
  const auto value = [&](int idx, int part) { return m[idx] * site.scale[part] + site.base[idx]; };
  if (lane < n) {
    pre[lane] = sigmoid(value(lane, 0)) + site.hc_eps;
    post[lane] = 2 * sigmoid(value(n + lane, 1));
  }
  float row[kMaxStreams];
  float largest = -INFINITY;
#pragma unroll
  for (int k = 0; k < kMaxStreams; ++k) {
    row[k] = lane < n && k < n ? value(2 * n + lane * n + k, 2) : 0.0f;
    if (k < n) largest = fmaxf(largest, row[k]);
  }
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kMaxStreams; ++k) {
    row[k] = lane < n && k < n ? expf(row[k] - largest) : 0.0f;
    sum += row[k];
  }
#pragma unroll
  for (int k = 0; k < kMaxStreams; ++k)
    if (lane < n && k < n) row[k] = row[k] / sum + site.hc_eps;
  for (int iteration = 0; iteration < site.sinkhorn_iters || iteration == 0; ++iteration) {
    if (iteration > 0) {
      float row_sum = site.hc_eps;
#pragma unroll
      for (int k = 0; k < kMaxStreams; ++k) row_sum += row[k];
#pragma unroll
      for (int k = 0; k < kMaxStreams; ++k) row[k] = lane < n ? row[k] / row_sum : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < kMaxStreams; ++k) {
      if (k >= n) break;
      float column = row[k];
#pragma unroll
      for (int distance = 1; distance < kMaxStreams; distance *= 2)
        column += __shfl_xor_sync(~0u, column, distance);
      row[k] = lane < n ? row[k] / (column + site.hc_eps) : 0.0f;
    }
  }
#pragma unroll
  for (int k = 0; k < kMaxStreams; ++k)
    if (lane < n && k < n) comb[lane * n + k] = row[k];
}

/// The same for four streams: lane 4i + k of the first 16 keeps element (i, k) of comb.
__device__ void coefficients_of_four(const float* m, const Site& site, int lane, float* pre,
                                     float* post, float* comb) {
  const auto value = [&](int idx, int part) { return m[idx] * site.scale[part] + site.base[idx]; };
  if (lane < 4) {
    pre[lane] = sigmoid(value(lane, 0)) + site.hc_eps;
    post[lane] = 2 * sigmoid(value(4 + lane, 1));
  }
  const auto row_sum = [](float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
  };
  const auto column_sum = [](float x) {
    x += __shfl_xor_sync(~0u, x, 4);
    return x + __shfl_xor_sync(~0u, x, 8);
  };
  const float logit = value(8 + lane % 16, 2);
  float largest = fmaxf(logit, __shfl_xor_sync(~0u, logit, 1));
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
  float x = expf(logit - largest);
  x = x / row_sum(x) + site.hc_eps;
  x = x / (column_sum(x) + site.hc_eps);
  for (int iteration = 1; iteration < site.sinkhorn_iters; ++iteration) {
    x = x / (row_sum(x) + site.hc_eps);
    x = x / (column_sum(x) + site.hc_eps);
  }
  if (lane < 16) comb[lane] = x;
}

/// Four columns of a row of fn or of x, as one load where the row allows it; zero beyond its end.
__device__ __forceinline__ float4 load_columns(const float* row, int c, int num_columns,
                                               bool aligned) {
  if (aligned && c + 4 <= num_columns) return *reinterpret_cast<const float4*>(row + c);
  return make_float4(c < num_columns ? row[c] : 0.0f, c + 1 < num_columns ? row[c + 1] : 0.0f,
                     c + 2 < num_columns ? row[c + 2] : 0.0f,
                     c + 3 < num_columns ? row[c + 3] : 0.0f);
}

// A thread block: kTokens tokens x kColumns columns of all rows of fn, and the sums of squares. The
// last block of a token group adds the pieces in order and finishes.
// partials: [token group][slice][kTokens][rows of fn + 1]
__global__ __launch_bounds__(kThreads) void hc_coefficients_kernel(View<const float> x, Site site,
                                                                   HcCoefficients out,
                                                                   float* partials,
                                                                   unsigned* counters) {
  constexpr int kLoads = kColumns / 128;  // of four columns a lane
  __shared__ float4 columns[kTokens][kColumns / 4];
  __shared__ float mix[kTokens][(2 + kMaxStreams) * kMaxStreams + 1];
  __shared__ float part[kWarps][32];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int num_rows = int(site.fn.rows), width = num_rows + 1;
  const int64_t first_token = int64_t(blockIdx.y) * kTokens;
  const int num_tokens = int(x.rows - first_token < kTokens ? x.rows - first_token : kTokens);
  const int64_t begin = int64_t(blockIdx.x) * kColumns;
  const int num_columns = int(x.cols - begin < kColumns ? x.cols - begin : kColumns);
  const bool aligned = ((reinterpret_cast<uintptr_t>(site.fn.data) & 15) |
                        (reinterpret_cast<uintptr_t>(x.data) & 15) |
                        uintptr_t((site.fn.stride | x.stride) & 3)) == 0;
  const auto load_row = [&](int r, float4(&row)[kLoads]) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      row[i] = r < num_rows
                   ? load_columns(site.fn.row(r) + begin, 4 * (lane + 32 * i), num_columns, aligned)
                   : make_float4(0, 0, 0, 0);
  };
  float4 next[kLoads];  // always one row ahead
  load_row(warp, next);
  for (int at = int(threadIdx.x); at < kTokens * (kColumns / 4); at += kThreads) {
    const int t = at / (kColumns / 4), c = at % (kColumns / 4);
    columns[t][c] = t < num_tokens
                        ? load_columns(x.row(first_token + t) + begin, 4 * c, num_columns, aligned)
                        : make_float4(0, 0, 0, 0);
  }
  __syncthreads();
  float* const piece = partials + (int64_t(blockIdx.y) * gridDim.x + blockIdx.x) * kTokens * width;
  for (int r = warp; r < width; r += kWarps) {
    float4 row[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) row[i] = next[i];
    load_row(r + kWarps, next);
    for (int t = 0; t < num_tokens; ++t) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const float4 v = columns[t][lane + 32 * i];
        const float4 f = r < num_rows ? row[i] : v;
        sum = fmaf(f.x, v.x, sum);
        sum = fmaf(f.y, v.y, sum);
        sum = fmaf(f.z, v.z, sum);
        sum = fmaf(f.w, v.w, sum);
      }
      sum = warp_sum(sum);
      if (lane == 0) piece[t * width + r] = sum;
    }
  }
  if (!last_to_arrive(counters + blockIdx.y, gridDim.x)) return;

  // A warp adds every eighth piece, then the eight sums are added in order.
  const float* const pieces = partials + int64_t(blockIdx.y) * gridDim.x * kTokens * width;
  for (int first = 0; first < num_tokens * width; first += 32) {
    const int idx = first + lane;
    float sum = 0;
    if (idx < num_tokens * width) {
#pragma unroll 8
      for (unsigned slice = unsigned(warp); slice < gridDim.x; slice += kWarps)
        sum += __ldcg(pieces + int64_t(slice) * kTokens * width + idx);
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && idx < num_tokens * width) {
      float all = 0;
      for (int w = 0; w < kWarps; ++w) all += part[w][lane];
      mix[idx / width][idx % width] = all;
    }
    __syncthreads();
  }
  if (warp >= num_tokens) return;
  const float scale = 1.0f / sqrtf(mix[warp][num_rows] / float(x.cols) + site.norm_eps);
  for (int r = lane; r < num_rows; r += 32) mix[warp][r] *= scale;
  __syncwarp();
  const int64_t token = first_token + warp;
  float* const pre = out.pre.row(token);
  float* const post = out.post.row(token);
  float* const comb = out.comb.row(token);
  if (out.pre.cols == 4)
    coefficients_of_four(mix[warp], site, lane, pre, post, comb);
  else
    coefficients_of_any(mix[warp], site, int(out.pre.cols), lane, pre, post, comb);
}

constexpr int kCollapseThreads = 512;

__global__ __launch_bounds__(kCollapseThreads) void hc_collapse_norm_kernel(
    View<const float> x, View<const float> mix, const float* w, float eps, View<float> out) {
  const float* const in = x.row(blockIdx.x);
  const float* const factor = mix.row(blockIdx.x);
  float* const row = out.row(blockIdx.x);
  float sum = 0;
  for (int64_t c = threadIdx.x; c < out.cols; c += kCollapseThreads) {
    float value = 0;
    for (int64_t j = 0; j < mix.cols; ++j) value = fmaf(factor[j], in[j * out.cols + c], value);
    row[c] = value;  // read again below, by the thread that wrote it
    sum += value * value;
  }
  const float scale = 1.0f / sqrtf(block_sum<kCollapseThreads>(sum) / float(out.cols) + eps);
  for (int64_t c = threadIdx.x; c < out.cols; c += kCollapseThreads) row[c] = row[c] * scale * w[c];
}

template <int kStreams>  // 0: any number up to kMaxStreams
__global__ __launch_bounds__(kThreads) void hc_expand_kernel(View<const float> y,
                                                             View<const float> post,
                                                             View<const float> comb,
                                                             View<float> x) {
  const int64_t row = blockIdx.y, c = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= y.cols) return;
  constexpr int kMost = kStreams > 0 ? kStreams : kMaxStreams;
  const int n = kStreams > 0 ? kStreams : int(post.cols);
  const float value = y.row(row)[c];
  float before[kMost];
#pragma unroll
  for (int j = 0; j < kMost; ++j)
    if (j < n) before[j] = x.row(row)[j * y.cols + c];
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    if (k >= n) break;
    float sum = post.row(row)[k] * value;
#pragma unroll
    for (int j = 0; j < kMost; ++j)
      if (j < n) sum = fmaf(comb.row(row)[j * n + k], before[j], sum);
    x.row(row)[k * y.cols + c] = sum;
  }
}

// One thread an element of y; nothing is read that another thread writes.
__global__ void hc_begin_kernel(View<const float> y, View<float> x, View<float> mix) {
  const int64_t idx = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (idx >= y.rows * y.cols) return;
  const int64_t row = idx / y.cols, c = idx % y.cols;
  const float value = y.row(row)[c];
  for (int64_t j = 0; j < mix.cols; ++j) x.row(row)[j * y.cols + c] = value;
  if (c == 0)
    for (int64_t j = 0; j < mix.cols; ++j) mix.row(row)[j] = j == 0 ? 1.0f : 0.0f;
}

}  // namespace

void hc_begin(const Exec& exec, View<const float> y, View<float> x, View<float> mix) {
  const int64_t count = y.rows * y.cols;
  launch(exec, dim3(unsigned((count + kThreads - 1) / kThreads)), dim3(kThreads), 0,
         hc_begin_kernel, y, x, mix);
}

void hc_coefficients(const Exec& exec, View<const float> x, const HcSite& site,
                     const HcCoefficients& out) {
  constexpr int64_t kMaxGroups = 16384;
  const int64_t slices = (x.cols + kColumns - 1) / kColumns;
  for (int64_t begin = 0; begin < x.rows; begin += kMaxGroups * kTokens) {
    const int64_t end = std::min(x.rows, begin + kMaxGroups * kTokens);
    const int64_t groups = (end - begin + kTokens - 1) / kTokens;
    ScratchCutter scratch(exec);
    unsigned* const counters = scratch.counters(groups, "hc_coefficients");
    float* const partials =
        scratch.take<float>(groups * slices * kTokens * (site.fn.rows + 1), "hc_coefficients");
    launch(exec, dim3(unsigned(slices), unsigned(groups)), dim3(kThreads), 0,
           hc_coefficients_kernel, x.rows_between(begin, end),
           Site{site.fn, site.base.data(), site.scale.data(), int(site.sinkhorn_iters), site.hc_eps,
                site.norm_eps},
           HcCoefficients{out.pre.rows_between(begin, end), out.post.rows_between(begin, end),
                          out.comb.rows_between(begin, end)},
           partials, counters);
  }
}

void hc_collapse_norm(const Exec& exec, View<const float> x, View<const float> mix,
                      std::span<const float> w, float eps, View<float> out) {
  launch(exec, dim3(unsigned(x.rows)), dim3(kCollapseThreads), 0, hc_collapse_norm_kernel, x, mix,
         w.data(), eps, out);
}

void hc_expand(const Exec& exec, View<const float> y, View<const float> post,
               View<const float> comb, View<float> x) {
  const auto kernel = post.cols == 4 ? hc_expand_kernel<4> : hc_expand_kernel<0>;
  const auto grid_x = unsigned((y.cols + kThreads - 1) / kThreads);
  for (int64_t begin = 0; begin < x.rows; begin += 65535) {
    const int64_t end = std::min<int64_t>(x.rows, begin + 65535);
    launch(exec, dim3(grid_x, unsigned(end - begin)), dim3(kThreads), 0, kernel,
           y.rows_between(begin, end), post.rows_between(begin, end), comb.rows_between(begin, end),
           x.rows_between(begin, end));
  }
}

}  // namespace onecard::ops::cuda
