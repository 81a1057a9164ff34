#pragma once

#include "ops/cuda/device.cuh"

namespace onecard::ops::cuda {

/// The sum of `value` over the kThreads threads of the thread block, in every thread. kThreads: a
/// multiple of 32, <= 1024. Called by all threads of the block; it synchronises them.
template <int kThreads>
__device__ float block_sum(float value) {
  __shared__ float partial[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) sum += partial[warp];
  __syncthreads();  // partial may be used again
  return sum;
}

/// The sum of `value` over the threads before this one; `total` is that of all. The same rules.
template <int kThreads>
__device__ int block_scan(int value, int& total) {
  __shared__ int warp_sum[kThreads / 32];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  int sum = value;
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const int before = __shfl_up_sync(~0u, sum, distance);
    if (lane >= int(distance)) sum += before;
  }
  if (lane == 31) warp_sum[warp] = sum;
  __syncthreads();
  int begin = 0;
  total = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) begin += warp_sum[w];
    total += warp_sum[w];
  }
  __syncthreads();
  return begin + sum - value;
}

}  // namespace onecard::ops::cuda
