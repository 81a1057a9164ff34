// Products with weights in the plain formats, in f32: exact weights, FMA sums in a fixed order.
#include <algorithm>

#include "ops/cuda/block_sum.cuh"
#include "ops/cuda/dense_weight.cuh"
#include "ops/cuda/exl3_linear.h"
#include "ops/cuda/kernels.h"
#include "ops/linear.h"

namespace onecard::ops::cuda {
namespace {

using Format = LinearWeight::Format;

constexpr int kFewRows = 8;
constexpr int kFewThreads = 128;
constexpr int kTile = 64;       // rows and outputs of a thread block
constexpr int kTileDepth = 16;  // inputs of a step
constexpr int kTileThreads = 256;

// One thread block an output, all rows.
template <Format kFormat>
__global__ __launch_bounds__(kFewThreads) void dense_few_kernel(View<const float> x, DenseWeight w,
                                                                View<float> out) {
  const int64_t o = blockIdx.x;
  float sums[kFewRows] = {};
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < w.in; i += kFewThreads) {
    const float value = weight_value<kFormat>(w, o, i);
#pragma unroll
    for (int r = 0; r < kFewRows; ++r)
      if (r < x.rows) sums[r] = fmaf(value, x.row(r)[i], sums[r]);
  }
#pragma unroll
  for (int r = 0; r < kFewRows; ++r) {
    if (r >= x.rows) break;
    const float sum = block_sum<kFewThreads>(sums[r]);
    if (threadIdx.x == 0) out.row(r)[o] = sum;
  }
}

// A tile of kTile rows x kTile outputs, 4 x 4 of them a thread.
template <Format kFormat>
__global__ __launch_bounds__(kTileThreads) void dense_many_kernel(View<const float> x,
                                                                  DenseWeight w, View<float> out) {
  __shared__ float x_tile[kTileDepth][kTile + 1];
  __shared__ float w_tile[kTileDepth][kTile + 1];
  const int64_t first_row = int64_t(blockIdx.y) * kTile, first_out = int64_t(blockIdx.x) * kTile;
  const int row = int(threadIdx.x) / 16 * 4, column = int(threadIdx.x) % 16 * 4;
  float sums[4][4] = {};
  for (int64_t begin = 0; begin < w.in; begin += kTileDepth) {
    for (int idx = int(threadIdx.x); idx < kTile * kTileDepth; idx += kTileThreads) {
      const int i = idx % kTileDepth, r = idx / kTileDepth;
      const bool in_depth = begin + i < w.in;
      x_tile[i][r] = in_depth && first_row + r < x.rows ? x.row(first_row + r)[begin + i] : 0.0f;
      w_tile[i][r] = in_depth && first_out + r < w.out
                         ? weight_value<kFormat>(w, first_out + r, begin + i)
                         : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTileDepth; ++i) {
#pragma unroll
      for (int a = 0; a < 4; ++a) {
#pragma unroll
        for (int b = 0; b < 4; ++b)
          sums[a][b] = fmaf(x_tile[i][row + a], w_tile[i][column + b], sums[a][b]);
      }
    }
    __syncthreads();
  }
  for (int a = 0; a < 4; ++a)
    for (int b = 0; b < 4; ++b)
      if (first_row + row + a < x.rows && first_out + column + b < w.out)
        out.row(first_row + row + a)[first_out + column + b] = sums[a][b];
}

template <Format kFormat>
void dense(const Exec& exec, View<const float> x, const LinearWeight& weight, View<float> out) {
  const DenseWeight w = dense_weight(weight);
  if (x.rows <= kFewRows)
    return launch(exec, dim3(unsigned(w.out)), dim3(kFewThreads), 0, dense_few_kernel<kFormat>, x,
                  w, out);
  constexpr int64_t kMaxRows = int64_t{65535} * kTile;
  for (int64_t begin = 0; begin < x.rows; begin += kMaxRows) {
    const int64_t end = std::min(x.rows, begin + kMaxRows);
    launch(exec,
           dim3(unsigned((w.out + kTile - 1) / kTile), unsigned((end - begin + kTile - 1) / kTile)),
           dim3(kTileThreads), 0, dense_many_kernel<kFormat>, x.rows_between(begin, end), w,
           out.rows_between(begin, end));
  }
}

void dense_linear(const Exec& exec, const LinearCall& call) {
  switch (call.w->format) {
    case Format::kF32:
      return dense<Format::kF32>(exec, call.x, *call.w, call.out);
    case Format::kF16:
      return dense<Format::kF16>(exec, call.x, *call.w, call.out);
    case Format::kBf16:
      return dense<Format::kBf16>(exec, call.x, *call.w, call.out);
    case Format::kFp8Block32:
      return dense<Format::kFp8Block32>(exec, call.x, *call.w, call.out);
    case Format::kFp4Block32:
      return dense<Format::kFp4Block32>(exec, call.x, *call.w, call.out);
    case Format::kExl3:
      break;
  }
}

}  // namespace

void linear_each(const Exec& exec, std::span<const LinearCall> calls) {
  constexpr size_t kMost = 64;  // EXL3 calls of one launch chain
  LinearCall exl3_calls[kMost];
  size_t num_exl3 = 0;
  for (const LinearCall& call : calls) {
    if (call.w->format != Format::kExl3) {
      dense_linear(exec, call);
      continue;
    }
    exl3_calls[num_exl3++] = call;
    if (num_exl3 == kMost) {
      exl3_linear(exec, {exl3_calls, num_exl3});
      num_exl3 = 0;
    }
  }
  if (num_exl3 > 0) exl3_linear(exec, {exl3_calls, num_exl3});
}

}  // namespace onecard::ops::cuda
