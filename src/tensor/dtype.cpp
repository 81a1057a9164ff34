#include "tensor/dtype.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "tensor/e2m1.h"

namespace onecard {
namespace {

struct TypeInfo {
  DType dtype;
  const char* name;
  int64_t size;
};

constexpr std::array kTypes{
    TypeInfo{DType::kBool, "BOOL", 1},      TypeInfo{DType::kU8, "U8", 1},
    TypeInfo{DType::kI8, "I8", 1},          TypeInfo{DType::kI16, "I16", 2},
    TypeInfo{DType::kU16, "U16", 2},        TypeInfo{DType::kI32, "I32", 4},
    TypeInfo{DType::kU32, "U32", 4},        TypeInfo{DType::kI64, "I64", 8},
    TypeInfo{DType::kU64, "U64", 8},        TypeInfo{DType::kF16, "F16", 2},
    TypeInfo{DType::kBf16, "BF16", 2},      TypeInfo{DType::kF32, "F32", 4},
    TypeInfo{DType::kF64, "F64", 8},        TypeInfo{DType::kF8E4m3, "F8_E4M3", 1},
    TypeInfo{DType::kF8E5m2, "F8_E5M2", 1}, TypeInfo{DType::kF8E8m0, "F8_E8M0", 1},
};

constexpr std::array<float, 8> kE2m1{0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

}  // namespace

int64_t dtype_size(DType dtype) { return kTypes[static_cast<size_t>(dtype)].size; }

const char* dtype_name(DType dtype) { return kTypes[static_cast<size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const TypeInfo& type : kTypes)
    if (name == type.name) return type.dtype;
  return std::nullopt;
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 31;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = std::ldexp(float(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = uint16_t(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520.0f) return sign | 0x7c00;  // halfway to 65536 and beyond
  if (magnitude < 0x1p-14f)  // subnormal: a multiple of 2^-24; nearbyint rounds to even
    return uint16_t(sign | uint32_t(std::nearbyint(magnitude * 0x1p24f)));
  const uint32_t rest = bits & 0x7fffffff;
  const uint32_t rounded = rest + 0xfff + (rest >> 13 & 1);
  return uint16_t(sign | ((rounded >> 13) - (112u << 10)));
}

float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float e4m3_to_f32(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  float magnitude = 0;
  if (exponent == 15 && mantissa == 7)
    magnitude = std::numeric_limits<float>::quiet_NaN();
  else if (exponent == 0)
    magnitude = std::ldexp(float(mantissa), -9);
  else
    magnitude = std::ldexp(float(8 + mantissa), exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

uint8_t f32_to_e4m3(float value) {
  const auto sign = uint8_t(std::signbit(value) ? 0x80 : 0);
  const float magnitude = std::fabs(value);
  if (magnitude < 0x1p-6f)  // subnormal: a multiple of 2^-9 (8 of them are the first normal)
    return uint8_t(sign | uint8_t(std::nearbyint(magnitude * 0x1p9f)));
  int exponent = 0;
  const float fraction = std::frexp(magnitude, &exponent);  // [0.5, 1)
  auto mantissa = int(std::nearbyint(fraction * 16.0f));    // 8..16
  if (mantissa == 16) {
    mantissa = 8;
    ++exponent;
  }
  return uint8_t(sign | ((exponent + 6) << 3) | (mantissa - 8));
}

float e8m0_to_f32(uint8_t bits) {
  if (bits == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, int(bits) - 127);
}

float e2m1_to_f32(uint8_t code) {
  const float magnitude = kE2m1[code & 7];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

uint8_t f32_to_e2m1(float value) {
  return uint8_t((std::signbit(value) ? 8 : 0) | e2m1_magnitude_code(std::fabs(value)));
}

}  // namespace onecard
