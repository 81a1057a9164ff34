// Element types of stored tensors, and the scalar conversions between them and f32 (the reference
// for every fast one).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace onecard {

enum class DType {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kF16,
  kBf16,
  kF32,
  kF64,
  kF8E4m3,  // e4m3fn: no infinities, largest 448
  kF8E5m2,
  kF8E8m0,  // an exponent byte: 2^(s-127), 255 is NaN
};

int64_t dtype_size(DType dtype);      // bytes of one element
const char* dtype_name(DType dtype);  // as safetensors spells it: "F32", "F8_E4M3"
std::optional<DType> dtype_from_name(std::string_view name);

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);  // round to nearest even; overflow becomes infinity
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);  // round to nearest even
float e4m3_to_f32(uint8_t bits);    // 0x7f and 0xff are NaN
/// Round to nearest even onto the e4m3fn grid, subnormals included; |value| must be <= 448 (clamp
/// first).
uint8_t f32_to_e4m3(float value);
float e8m0_to_f32(uint8_t bits);
/// Code 0..15 (sign in bit 3) -> 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
float e2m1_to_f32(uint8_t code);
/// Nearest of the e2m1 grid, ties to the even code (0.25 -> 0, 0.75 -> 1, 2.5 -> 2); the sign is
/// kept, also of zero. |value| must be <= 6 (clamp first).
uint8_t f32_to_e2m1(float value);

}  // namespace onecard
