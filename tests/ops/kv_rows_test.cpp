#include "ops/kv_rows.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "base/error.h"
#include "ops/cpu_isas.h"

namespace onecard::ops {
namespace {

/// The published vector: amax 9.84375, values on both sides of every rounding rule.
std::vector<float> published() {
  std::vector<float> x;
  for (int i = 0; i < 32; ++i)
    x.push_back((float(37 * i % 64) - 31.5f) * 0.0625f * float(1 + i % 5));
  return x;
}

std::vector<float> through(KvFormat format, std::vector<float> x, cpu::Isa isa) {
  const auto dim = int64_t(x.size());
  const Exec exec{.isa = isa};
  std::vector<std::byte> packed(size_t(kv_row_bytes(format, dim)));
  const KvRows row{packed.data(), int64_t(packed.size()), dim, format};
  pack_kv_rows(exec, View<const float>(x.data(), 1, dim), row);
  std::vector<float> out(x.size());
  unpack_kv_rows(exec, as_const(row), View<float>(out.data(), 1, dim));
  fake_quantise(exec, format, dim, View<float>(x.data(), 1, dim));
  EXPECT_EQ(out, x);  // packing and fake-quantising are one thing
  return out;
}

TEST(KvRows, PublishedVectors) {
  for (const cpu::Isa isa : test::cpu_isas()) {
    EXPECT_EQ(through(KvFormat::kFp8Block32, published(), isa),
              (std::vector<float>{-2,  0.6875,   -4,     4,     -3.5,    1.625, -0.1875, -5.5,
                                  2,   -6,       1.125,  -1,    5.5,     0.375, -8,      0.75,
                                  -2,  4,        -1.375, 10,    0.28125, -2.75, 2.75,    -3,
                                  7.5, -0.15625, -3.75,  1.375, -5,      5.5,   -0.625,  3.5}));
    EXPECT_EQ(
        through(KvFormat::kFp4Block32, published(), isa),
        (std::vector<float>{-2, 1, -4, 4, -4, 2,  -0.0f, -6, 2, -6,    1,  -1, 6,  0, -8, 1,
                            -2, 4, -1, 8, 0,  -3, 3,     -3, 8, -0.0f, -4, 1,  -4, 6, -1, 3}));
    EXPECT_EQ(through(KvFormat::kFp4Block16, published(), isa),
              (std::vector<float>{-2.0625f, 0.6875f, -4.125f,  4.125f, -4.125f, 1.375f, -0.0f,
                                  -5.5f,    2.0625f, -5.5f,    1.375f, -1.375f, 5.5f,   0.6875f,
                                  -8.25f,   0.6875f, -1.625f,  3.25f,  -1.625f, 9.75f,  0,
                                  -2.4375f, 2.4375f, -3.25f,   6.5f,   -0.0f,   -3.25f, 1.625f,
                                  -4.875f,  4.875f,  -0.8125f, 3.25f}));
  }
}

TEST(KvRows, SizesOfThePublishedModel) {
  EXPECT_EQ(kv_row_bytes(KvFormat::kFp8Block32, 512), 528);
  EXPECT_EQ(kv_row_bytes(KvFormat::kFp4Block16, 512), 288);
  EXPECT_EQ(kv_row_bytes(KvFormat::kFp4Block32, 128), 68);
  EXPECT_EQ(kv_row_bytes(KvFormat::kF32, 40), 160);
  EXPECT_EQ(kv_format_for(KvFormat::kFp4Block16, 40), KvFormat::kF32);
  EXPECT_EQ(kv_format_for(KvFormat::kFp4Block16, 48), KvFormat::kFp4Block16);
}

TEST(KvRows, ScalesAtTheirEnds) {
  // The smallest magnitude that a scale stands for, and a power of two exactly at the boundary.
  const std::vector<float> zeros(32, 0.0f);
  for (const cpu::Isa isa : test::cpu_isas()) {
    for (const KvFormat format :
         {KvFormat::kFp8Block32, KvFormat::kFp4Block32, KvFormat::kFp4Block16})
      EXPECT_EQ(through(format, zeros, isa), zeros);
    std::vector<float> x(32, 0.0f);
    x[3] = 448;  // exact at scale 1 and at scale 2, whichever side of 1 the f32 product 448 *
                 // (1/448) is
    EXPECT_EQ(through(KvFormat::kFp8Block32, x, isa)[3], 448.0f);
    // Below 1e-4 the scale stays that of 1e-4: pow2ceil(1e-4 / 448) = 2^-22. 1e-6 is 4.19 of it,
    // and e4m3 has steps of 0.5 there.
    x[3] = 1e-6f;
    EXPECT_EQ(through(KvFormat::kFp8Block32, x, isa)[3], 4 * 0x1p-22f);
    for (const float scale : {0x1p7f, 0x1p8f, 0x1p100f}) {  // up to 2^7 it is joined with the bias
      x[3] = -448 * scale;
      x[4] = 0x1p-9f * scale;
      EXPECT_EQ(through(KvFormat::kFp8Block32, x, isa), x);
    }
    x[4] = 0;
  }
}

// One element of a block as it comes back when `amax` stands beside it.
float beside(KvFormat format, float amax, float value, cpu::Isa isa) {
  std::vector<float> x(32, 0.0f);
  x[0] = amax;
  x[3] = value;
  return through(format, x, isa)[3];
}

// A scale that is a power of two already is not doubled: what is smaller than it allows is lost.
// (Times 1/448 or divided by 448, times 1/6 or divided by 6: over all f32 the power is the same.)
TEST(KvRows, PowersOfTwoAreTheirOwnScale) {
  for (const cpu::Isa isa : test::cpu_isas()) {
    EXPECT_EQ(beside(KvFormat::kFp8Block32, 448, 0x1p-9f, isa), 0x1p-9f);
    EXPECT_EQ(beside(KvFormat::kFp8Block32, std::nextafter(449.0f, 500.0f), 0x1p-9f, isa), 0.0f);
    EXPECT_EQ(beside(KvFormat::kFp4Block32, 6, 0.5f, isa), 0.5f);
    EXPECT_EQ(beside(KvFormat::kFp4Block32, 6.01f, 0.5f, isa), 0.0f);
  }
}

TEST(KvRows, LeastMagnitudes) {
  for (const cpu::Isa isa : test::cpu_isas()) {
    // FP8: 1e-4 / 448 is below 2^-22, so the grid's smallest step is 2^-31, whatever is smaller.
    EXPECT_EQ(beside(KvFormat::kFp8Block32, 0, 0x1p-31f, isa), 0x1p-31f);
    EXPECT_EQ(beside(KvFormat::kFp8Block32, 0, 0x1p-33f, isa), 0.0f);
    // FP4 with e4m3 scales: 2^-9, the smallest that there is.
    EXPECT_EQ(beside(KvFormat::kFp4Block16, 0, 0x1p-10f, isa), 0x1p-10f);
    EXPECT_EQ(beside(KvFormat::kFp4Block16, 0, 0x1p-11f, isa), 0.0f);
    // FP4 with powers of two: 2^-126.
    EXPECT_EQ(beside(KvFormat::kFp4Block32, 0, 0x1p-127f, isa), 0x1p-127f);
    EXPECT_EQ(beside(KvFormat::kFp4Block32, 0, 0x1p-128f, isa), 0.0f);
  }
}

TEST(KvRows, Fp4ScalesOfSixteenDivide) {
  // A sixth of it is just below the middle of two scales; times f32(1/6) it is the middle, whose
  // even neighbour is the larger scale: 0.15625.
  const float amax = 0x1.c7fffep-1f;
  for (const cpu::Isa isa : test::cpu_isas())
    EXPECT_EQ(beside(KvFormat::kFp4Block16, amax, 0.140625f, isa), 0.140625f);
}

TEST(KvRows, Fp4TiesGoToTheEvenCode) {
  constexpr std::array<std::array<float, 2>, 7> kTies{
      {{0.25f, 0}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2}, {2.5f, 2}, {3.5f, 4}, {5, 4}}};
  for (const cpu::Isa isa : test::cpu_isas()) {
    for (const KvFormat format : {KvFormat::kFp4Block32, KvFormat::kFp4Block16}) {
      for (const auto& [tie, rounded] : kTies) {
        EXPECT_EQ(beside(format, 6, tie, isa), rounded);
        EXPECT_EQ(beside(format, 6, -tie, isa), -rounded);
      }
    }
  }
}

TEST(KvRows, EveryIsaUnpacksTheSame) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const int64_t dim : {32, 64, 96, 512}) {
    std::vector<float> x(static_cast<size_t>(dim));
    for (float& value : x) value = normal(random) * std::exp2(normal(random) * 6);
    for (const KvFormat format :
         {KvFormat::kF32, KvFormat::kFp8Block32, KvFormat::kFp4Block32, KvFormat::kFp4Block16}) {
      const std::vector<float> want = through(format, x, cpu::Isa::kPlain);
      for (const cpu::Isa isa : test::cpu_isas()) EXPECT_EQ(through(format, x, isa), want);
    }
  }
}

TEST(KvRows, HeadsAreQuantisedOneByOne) {
  std::vector<float> two = published();
  for (const float value : published()) two.push_back(value * 1000);
  std::vector<float> x = two;
  fake_quantise({}, KvFormat::kFp4Block32, 32, View<float>(x.data(), 1, 64));
  const std::vector<float> first = through(KvFormat::kFp4Block32, published(), cpu::Isa::kPlain);
  EXPECT_EQ(std::vector<float>(x.begin(), x.begin() + 32), first);
  EXPECT_THROW(fake_quantise({}, KvFormat::kFp4Block32, 33, View<float>(x.data(), 1, 64)), Error);
}

}  // namespace
}  // namespace onecard::ops
