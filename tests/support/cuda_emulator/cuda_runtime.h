// What nvcc gives device code, on the host.
#pragma once

#include <cmath>

#include "cuda_emulator/emulator.h"
#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static  // one block runs at a time, and its fibers share the statics
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

#define threadIdx (::onecard::cuda_emulator::current().thread_idx)
#define blockIdx (::onecard::cuda_emulator::current().block_idx)
#define blockDim (::onecard::cuda_emulator::current().block_dim)
#define gridDim (::onecard::cuda_emulator::current().grid_dim)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline void __syncthreads() { onecard::cuda_emulator::sync_block(); }
inline void __syncwarp(unsigned mask = ~0u) { onecard::cuda_emulator::sync_warp(mask); }
inline void __threadfence() {}
inline int __syncthreads_or(int value) { return onecard::cuda_emulator::sync_block_or(value); }

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  static_assert(sizeof(T) <= 8);
  return onecard::cuda_emulator::shuffle(mask, value, lane & 31);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return onecard::cuda_emulator::shuffle(mask, value,
                                         int(onecard::cuda_emulator::lane_id()) ^ lanes);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  const int lane = int(onecard::cuda_emulator::lane_id());
  return onecard::cuda_emulator::shuffle(mask, value,
                                         lane >= int(delta) ? lane - int(delta) : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return onecard::cuda_emulator::ballot(mask, predicate != 0);
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }

template <typename T>
T __ldg(const T* data) {
  return *data;
}
template <typename T>
T __ldcg(const T* data) {
  return *data;
}
template <typename T>
T atomicAdd(T* data, T value) {
  const T old = *data;
  *data = T(old + value);
  return old;
}
inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
inline unsigned __float_as_uint(float value) { return __builtin_bit_cast(unsigned, value); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i)
    result |= unsigned(bytes >> (8 * (selector >> 4 * i & 7)) & 255) << 8 * i;
  return result;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
  return c;
}
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float a, float b) { return a / b; }
