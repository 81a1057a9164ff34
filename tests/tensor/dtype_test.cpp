#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace onecard {
namespace {

TEST(DType, NamesRoundTrip) {
  for (int i = 0; i <= int(DType::kF8E8m0); ++i)
    EXPECT_EQ(dtype_from_name(dtype_name(DType(i))), DType(i));
  EXPECT_FALSE(dtype_from_name("F7").has_value());
}

TEST(DType, F16RoundTripsEveryBitPattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_f32(uint16_t(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(f32_to_f16(value), bits);
  }
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(1.0f + 0x1p-11f), 0x3c00);  // tie to even
  EXPECT_EQ(f32_to_f16(1.0f + 0x1p-11f + 0x1p-20f), 0x3c01);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0);  // tie to even zero
}

TEST(DType, Bf16TiesToEven) {
  EXPECT_EQ(f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(1.0f + 0x1p-7f + 0x1p-8f), 0x3f82);
}

// The nearest value of a grid by search, ties to the even code: an independent statement of the
// rounding rule.
template <typename Decode>
uint8_t nearest(float value, int codes, Decode decode) {
  int best = 0;
  for (int code = 1; code < codes; ++code) {
    const double error = std::fabs(double(decode(uint8_t(code))) - std::fabs(value));
    const double best_error = std::fabs(double(decode(uint8_t(best))) - std::fabs(value));
    if (error < best_error || (error == best_error && code % 2 == 0)) best = code;
  }
  return uint8_t(best);
}

TEST(DType, E4m3RoundsToNearestEven) {
  for (int code = 0; code < 0x7f; ++code) {
    const float value = e4m3_to_f32(uint8_t(code));
    ASSERT_EQ(f32_to_e4m3(value), code);
    ASSERT_EQ(f32_to_e4m3(-value), code | 0x80);
  }
  for (int i = 0; i <= 448 * 64; ++i) {
    const float value = float(i) / 64.0f;
    ASSERT_EQ(f32_to_e4m3(value), nearest(value, 0x7f, e4m3_to_f32)) << value;
  }
  for (int i = 0; i < 4096; ++i) {
    const float value = float(i) * 0x1p-14f;
    ASSERT_EQ(f32_to_e4m3(value), nearest(value, 0x7f, e4m3_to_f32)) << value;
  }
}

TEST(DType, E2m1RoundsToNearestEven) {
  for (int i = 0; i <= 6 * 64; ++i) {
    const float value = float(i) / 64.0f;
    ASSERT_EQ(f32_to_e2m1(value), nearest(value, 8, e2m1_to_f32)) << value;
  }
  EXPECT_EQ(f32_to_e2m1(-0.1f), 8);  // -0 keeps its sign
}

TEST(DType, E8m0IsAnExponent) {
  EXPECT_EQ(e8m0_to_f32(127), 1.0f);
  EXPECT_EQ(e8m0_to_f32(0), 0x1p-127f);
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
}

}  // namespace
}  // namespace onecard
