// Stands in for src/ops/cuda/device.cuh where kernels run on the host; same contracts.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cuda_emulator/emulator.h"
#include "device/cuda/error.h"
#include "device/exec.h"
#include "tensor/dtype.h"

namespace onecard::ops::cuda {

template <typename... Params, typename... Args>
void launch(const Exec& exec, dim3 grid, dim3 block, size_t shared_bytes, void (*kernel)(Params...),
            Args... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cuda_emulator::run(static_cast<cudaStream_t>(exec.stream), grid, block, shared_bytes,
                     [=] { kernel(Params(args)...); });
}

inline std::byte* dynamic_shared() {
  return static_cast<std::byte*>(cuda_emulator::dynamic_shared());
}

inline float f16_to_f32(uint16_t bits) { return ::onecard::f16_to_f32(bits); }

inline uint32_t pack_f16x2(float low, float high) {
  return f32_to_f16(low) | uint32_t(f32_to_f16(high)) << 16;
}
inline uint32_t add_f16x2(uint32_t a, uint32_t b) {
  return pack_f16x2(f16_to_f32(uint16_t(a)) + f16_to_f32(uint16_t(b)),
                    f16_to_f32(uint16_t(a >> 16)) + f16_to_f32(uint16_t(b >> 16)));
}
inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  const auto one = [](uint32_t x, uint32_t y, uint32_t z) {
    return std::fma(f16_to_f32(uint16_t(x)), f16_to_f32(uint16_t(y)), f16_to_f32(uint16_t(z)));
  };
  return pack_f16x2(one(a, b, c), one(a >> 16, b >> 16, c >> 16));
}

inline void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    uint32_t a[4], b[2];
  };
  cuda_emulator::Slot slot;
  const Operands sent{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  std::memcpy(slot.bytes, &sent, sizeof(sent));
  cuda_emulator::meet(~0u, slot, [](cuda_emulator::Slot* slots, uint32_t) {
    float left[16][16], right[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      Operands given;
      std::memcpy(&given, slots[lane].bytes, sizeof(given));
      const int g = lane / 4, q = lane % 4;
      for (int i = 0; i < 8; ++i)  // register i / 2, half i % 2
        left[g + 8 * (i / 2 % 2)][2 * q + i % 2 + 8 * (i / 4)] =
            f16_to_f32(uint16_t(given.a[i / 2] >> 16 * (i % 2)));
      for (int i = 0; i < 4; ++i)
        right[2 * q + i % 2 + 8 * (i / 2)][g] =
            f16_to_f32(uint16_t(given.b[i / 2] >> 16 * (i % 2)));
    }
    for (int lane = 0; lane < 32; ++lane) {
      float products[4];
      for (int i = 0; i < 4; ++i) {
        double sum = 0;
        for (int k = 0; k < 16; ++k)
          sum += double(left[lane / 4 + 8 * (i / 2)][k]) * right[k][2 * (lane % 4) + i % 2];
        products[i] = float(sum);
      }
      std::memcpy(slots[lane].bytes, products, sizeof(products));
    }
  });
  float products[4];
  std::memcpy(products, slot.bytes, sizeof(products));
  for (int i = 0; i < 4; ++i) c[i] += products[i];
}

inline void async_copy_16(void* shared, const void* global) {
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(global) % 16 != 0)
    std::abort();
  cuda_emulator::async_copy(shared, global, 16);
}
inline void async_commit() { cuda_emulator::async_commit(); }
template <int kGroupsLeft>
void async_wait() {
  cuda_emulator::async_wait(kGroupsLeft);
}

inline uint32_t load_stream(const uint32_t* global) { return *global; }

}  // namespace onecard::ops::cuda
