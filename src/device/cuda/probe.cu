#include "device/cuda/error.h"
#include "device/cuda/probe.h"

namespace onecard::cuda {
namespace {

constexpr int kThreads = 512;

__global__ void read_kernel(const uint4* data, int64_t count, uint32_t* sink) {
  const int64_t step = int64_t(gridDim.x) * kThreads;
  uint32_t bits = 0;
  int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  for (; i + 7 * step < count; i += 8 * step) {
    uint4 part[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) part[k] = __ldg(data + i + k * step);
#pragma unroll
    for (int k = 0; k < 8; ++k) bits ^= part[k].x ^ part[k].y ^ part[k].z ^ part[k].w;
  }
  for (; i < count; i += step) bits ^= data[i].x ^ data[i].w;
  if (bits == 0x9E3779B9u) *sink = bits;  // hardly ever, but the compiler cannot know
}

__global__ void products_kernel(int64_t rounds, float* sink) {
  constexpr int kChains = 8;
  float sums[kChains][4] = {};
  uint32_t a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {threadIdx.x, 5};
  for (int64_t round = 0; round < rounds; ++round) {
#pragma unroll
    for (int c = 0; c < kChains; ++c)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
          "{%8,%9}, {%0,%1,%2,%3};"
          : "+f"(sums[c][0]), "+f"(sums[c][1]), "+f"(sums[c][2]), "+f"(sums[c][3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  float sum = 0;
  for (int c = 0; c < kChains; ++c) sum += sums[c][0] + sums[c][1] + sums[c][2] + sums[c][3];
  if (sum == 12345.0f) *sink = sum;
}

__global__ void random_kernel(uint32_t* data, int64_t count, uint32_t seed) {
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += int64_t(gridDim.x) * kThreads) {
    uint32_t z = uint32_t(i) * 0x9E3779B9u + seed * 0x85EBCA6Bu + uint32_t(i >> 32);
    z = (z ^ z >> 16) * 0x21F0AAADu;
    z = (z ^ z >> 15) * 0x735A2D97u;
    data[i] = z ^ z >> 15;
  }
}

}  // namespace

void queue_read(const Stream& stream, const std::byte* data, int64_t bytes, uint32_t* sink,
                int num_multiprocessors) {
  read_kernel<<<unsigned(4 * num_multiprocessors), kThreads, 0, stream.get()>>>(
      reinterpret_cast<const uint4*>(data), bytes / 16, sink);
  ONECARD_CUDA_CHECK(cudaGetLastError());
}

double queue_products(const Stream& stream, int64_t rounds, float* sink, int num_multiprocessors) {
  products_kernel<<<unsigned(2 * num_multiprocessors), kThreads, 0, stream.get()>>>(rounds, sink);
  ONECARD_CUDA_CHECK(cudaGetLastError());
  return double(rounds) * 8 * 2 * 16 * 8 * 16 * (2.0 * num_multiprocessors * kThreads / 32);
}

void queue_random(const Stream& stream, std::byte* data, int64_t bytes, uint32_t seed) {
  random_kernel<<<2048, kThreads, 0, stream.get()>>>(reinterpret_cast<uint32_t*>(data), bytes / 4,
                                                     seed);
  ONECARD_CUDA_CHECK(cudaGetLastError());
}

}  // namespace onecard::cuda
