// What device code needs from the machine beyond CUDA C++: a launch that reports, dynamic shared
// memory, and the instructions that have no spelling there. Tests replace this header by one that
// does the same on the host (tests/support/cuda_emulator).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "device/cuda/error.h"
#include "device/exec.h"

namespace onecard::ops::cuda {

/// Queues kernel<<<grid, block, shared_bytes, exec.stream>>>(args...); nothing where the grid is
/// empty.
template <typename... Params, typename... Args>
void launch(const Exec& exec, dim3 grid, dim3 block, size_t shared_bytes, void (*kernel)(Params...),
            Args... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > 48 * 1024)  // beyond what every kernel may have without asking
    ONECARD_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            int(shared_bytes)));
  kernel<<<grid, block, shared_bytes, static_cast<cudaStream_t>(exec.stream)>>>(Params(args)...);
  ONECARD_CUDA_CHECK(cudaGetLastError());
}

/// The block's dynamic shared memory, 16-byte aligned.
__device__ inline std::byte* dynamic_shared() {
  extern __shared__ uint4 onecard_dynamic_shared[];
  return reinterpret_cast<std::byte*>(onecard_dynamic_shared);
}

// ---- pairs of fp16 in a register, the first in the low half

__device__ inline uint32_t pack_f16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ inline uint32_t add_f16x2(uint32_t a, uint32_t b) {
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}
/// a * b + c, rounded once.
__device__ inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}
__device__ inline float f16_to_f32(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

/// c += A B on the tensor cores: A 16 x 16 and B 16 x 8 of fp16, sums in f32. With g = lane / 4 and
/// q = lane % 4 a lane holds
///   a[0], a[1]: rows g, g + 8, columns 2q, 2q+1; a[2], a[3]: the same, columns + 8
///   b[0]: rows 2q, 2q+1 of column g; b[1]: rows + 8
///   c[0], c[1]: row g, columns 2q, 2q+1; c[2], c[3]: row g + 8
__device__ inline void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- copies from global to shared memory that run by themselves

/// 16 bytes; both addresses 16-byte aligned.
__device__ inline void async_copy_16(void* shared, const void* global) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
}
__device__ inline void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until at most kGroupsLeft of the thread's youngest groups are under way.
template <int kGroupsLeft>
__device__ void async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
}

/// Weights: read once, so they need no room in the first-level cache beyond their own lines.
__device__ inline uint32_t load_stream(const uint32_t* global) { return __ldg(global); }

}  // namespace onecard::ops::cuda
