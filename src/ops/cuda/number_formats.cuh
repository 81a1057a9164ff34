// The stored number formats on the device, bit for bit as tensor/dtype.h has them; usable on the
// host too, where tests compare the two.
#pragma once

#include <cstdint>

#include "ops/cuda/device.cuh"
#include "ops/kv_format.h"
#include "tensor/e2m1.h"

namespace onecard::ops::cuda {

__device__ inline float bf16_to_f32(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }

/// 2^(code - 127); code 0 is the subnormal 2^-127, 255 is NaN.
__device__ inline float e8m0_to_f32(uint8_t code) {
  if (code == 255) return __uint_as_float(0x7FC00000u);
  return __uint_as_float(code == 0 ? 0x00400000u : uint32_t(code) << 23);
}

__device__ inline float e4m3_to_f32(uint8_t code) {
  const uint32_t sign = uint32_t(code & 0x80) << 24, exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return __uint_as_float(sign | 0x7FC00000u);
  if (exponent == 0) {  // mantissa * 2^-9
    const float magnitude = float(mantissa) * 0x1p-9f;
    return __uint_as_float(sign | __float_as_uint(magnitude));
  }
  return __uint_as_float(sign | (exponent + 120) << 23 | mantissa << 20);
}

/// |value| <= 448; to nearest, ties to even.
__device__ inline uint8_t f32_to_e4m3(float value) {
  const uint32_t bits = __float_as_uint(value), sign = bits >> 24 & 0x80, rest = bits & 0x7FFFFFFFu;
  if (rest < 0x3C800000u) {  // below 2^-6: a multiple of 2^-9, rounded by an addition
    const float magnitude = __uint_as_float(rest);
    const float rounded = magnitude + 0x1.8p14f;  // whose last place is 2^-9
    return uint8_t(sign | (__float_as_uint(rounded) & 15));
  }
  const uint32_t rounded = rest + 0x7FFFFu + (rest >> 20 & 1);
  return uint8_t(sign | ((rounded >> 20) - (120u << 3)));
}

__device__ inline float e2m1_to_f32(uint8_t code) {
  const uint32_t sign = uint32_t(code & 8) << 28, exponent = code >> 1 & 3, mantissa = code & 1;
  if (exponent == 0) return __uint_as_float(sign | (mantissa != 0 ? 0x3F000000u : 0u));
  return __uint_as_float(sign | (exponent + 126) << 23 | mantissa << 22);
}

/// |value| <= 6; to nearest, ties to the even code.
__device__ inline uint8_t f32_to_e2m1(float value) {
  return uint8_t((__float_as_uint(value) >> 28 & 8) | e2m1_magnitude_code(fabsf(value)));
}

/// Exponent byte of the smallest power of two >= x, for x > 0.
__device__ inline uint8_t pow2ceil_e8m0(float x) {
  const uint32_t bits = __float_as_uint(x);
  return uint8_t((bits >> 23) + ((bits & 0x7FFFFF) != 0));
}

/// Element `c` of a packed row.
__device__ inline float kv_value(KvFormat format, const std::byte* row, int64_t dim, int64_t c) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(row);
  switch (format) {
    case KvFormat::kF32:
      return reinterpret_cast<const float*>(row)[c];
    case KvFormat::kFp8Block32:
      return e4m3_to_f32(bytes[c]) * e8m0_to_f32(bytes[dim + c / 32]);
    case KvFormat::kFp4Block32:
      return e2m1_to_f32(bytes[c / 2] >> (c % 2 * 4) & 15) * e8m0_to_f32(bytes[dim / 2 + c / 32]);
    case KvFormat::kFp4Block16:
      return e2m1_to_f32(bytes[c / 2] >> (c % 2 * 4) & 15) * e4m3_to_f32(bytes[dim / 2 + c / 16]);
  }
  return 0;
}

/// The scale of a block with this largest magnitude, and the byte that it is stored as.
struct BlockScale {
  uint8_t code;
  float value;
};
__device__ inline BlockScale block_scale(KvFormat format, float amax) {
  switch (format) {
    case KvFormat::kFp8Block32: {
      const uint8_t code = pow2ceil_e8m0(fmaxf(amax, 1e-4f) * (1.0f / 448.0f));
      return {code, e8m0_to_f32(code)};
    }
    case KvFormat::kFp4Block32: {
      const uint8_t code = pow2ceil_e8m0(fmaxf(amax, 6 * 0x1p-126f) * (1.0f / 6.0f));
      return {code, e8m0_to_f32(code)};
    }
    case KvFormat::kFp4Block16: {
      const uint8_t code = f32_to_e4m3(fminf(fmaxf(amax, 6 * 0x1p-9f) / 6.0f, 448.0f));
      return {code, e4m3_to_f32(code)};
    }
    case KvFormat::kF32:
      break;
  }
  return {0, 1};
}

/// Largest |x| among the lane's block of `block` lanes (16 or 32).
__device__ inline float block_amax(float x, int block) {
  float amax = fabsf(x);
  for (int distance = block / 2; distance > 0; distance /= 2)
    amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, distance));
  return amax;
}

/// x / scale on the format's grid, as its code.
__device__ inline uint8_t quantised_code(KvFormat format, float x, float scale) {
  const float most = format == KvFormat::kFp8Block32 ? 448.0f : 6.0f;
  const float y = fminf(fmaxf(x / scale, -most), most);
  return format == KvFormat::kFp8Block32 ? f32_to_e4m3(y) : f32_to_e2m1(y);
}

}  // namespace onecard::ops::cuda
