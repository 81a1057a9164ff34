#pragma once

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

}  // namespace onecard::ops::cuda
