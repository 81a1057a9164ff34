#include "device/cuda/error.h"
#include "ops/cuda/block_sum.cuh"
#include "ops/cuda/kernels.h"

namespace onecard::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void rms_norm_kernel(View<const float> x, const float* w, float eps, View<float> out) {
  const float* in = x.row(blockIdx.x);  // one thread block per token
  float sum = 0;
  for (int64_t c = threadIdx.x; c < x.cols; c += kThreads) sum += in[c] * in[c];
  const float scale = rsqrtf(block_sum<kThreads>(sum) / float(x.cols) + eps);
  for (int64_t c = threadIdx.x; c < x.cols; c += kThreads)
    out.row(blockIdx.x)[c] = in[c] * scale * w[c];
}

}  // namespace

void rms_norm(const Exec& exec, View<const float> x, std::span<const float> w, float eps,
              View<float> out) {
  rms_norm_kernel<<<unsigned(x.rows), kThreads, 0, static_cast<cudaStream_t>(exec.stream)>>>(
      x, w.data(), eps, out);
  ONECARD_CUDA_CHECK(cudaGetLastError());
}

}  // namespace onecard::ops::cuda
