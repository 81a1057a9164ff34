#include "ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/cpu_isas.h"
#include "support/compare.h"

namespace onecard::ops {
namespace {

TEST(Rope, PublishedFrequencies) {
  const YarnScaling yarn;
  const std::vector<float> compress = rope_frequencies(160000, 64, &yarn);
  const std::vector<float> main = rope_frequencies(10000, 64);
  ASSERT_EQ(compress.size(), 32u);
  // Nine digits are printed; f32 holds seven.
  const auto expect_near = [](float got, double want) { EXPECT_NEAR(got, want, 2e-7 * want); };
  expect_near(compress[0], 1);
  expect_near(compress[1], 0.687656045);
  expect_near(compress[15], 0.00363553851);
  expect_near(compress[16], 0.00226562493);
  expect_near(compress[20], 0.000296977785);
  expect_near(compress[25], 5.37231244e-06);
  expect_near(compress[31], 5.6805294e-07);
  expect_near(main[1], 0.749894202);
  expect_near(main[31], 0.00013335215);
}

TEST(Rope, TurnsTheLastChannelsInInterleavedPairs) {
  for (const cpu::Isa isa : test::cpu_isas()) {
    // Two vectors of 4 channels, the last 2 turn, by a quarter.
    const std::vector<float> quarter{0, 1};  // cos, sin
    std::vector<float> x{1, 2, 3, 4, 5, 6, 7, 8};
    const View<float> view(x.data(), 1, 8);
    const View<const float> angles(quarter.data(), 1, 2);
    rope({.isa = isa}, view, 4, angles);
    EXPECT_EQ(x, (std::vector<float>{1, 2, -4, 3, 5, 6, -8, 7}));
    rope({.isa = isa}, view, 4, angles, true);
    EXPECT_EQ(x, (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}));
  }
}

TEST(Rope, AnglesAreF32Products) {
  const std::vector<float> frequencies{1.0f, 0.687656045f};
  const std::vector<int64_t> positions{0, 100003};
  std::vector<float> out(8);
  rope_angles({}, positions, frequencies, View<float>(out.data(), 2, 4));
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[1], 0);
  const float angle = 100003.0f * 0.687656045f;
  EXPECT_FLOAT_EQ(out[6], float(std::cos(double(angle))));
  EXPECT_FLOAT_EQ(out[7], float(std::sin(double(angle))));
}

TEST(Rope, IsasAgreeForAnyNumberOfPairs) {
  for (const int64_t pairs : {1, 3, 4, 5, 8, 11, 32}) {
    std::vector<float> angles;
    std::vector<int64_t> positions{0, 1, 77};
    std::vector<float> frequencies;
    for (int64_t i = 0; i < pairs; ++i) frequencies.push_back(1.0f / float(i + 1));
    angles.resize(size_t(3 * 2 * pairs));
    rope_angles({}, positions, frequencies, View<float>(angles.data(), 3, 2 * pairs));
    const int64_t dim = 2 * pairs + 3;
    std::vector<float> x;
    for (int64_t i = 0; i < 3 * 2 * dim; ++i) x.push_back(float(i * 29 % 31) / 16 - 1);
    std::vector<std::vector<float>> results;
    for (const cpu::Isa isa : test::cpu_isas()) {
      results.push_back(x);
      rope({.isa = isa}, View<float>(results.back().data(), 3, 2 * dim), dim,
           View<const float>(angles.data(), 3, 2 * pairs));
    }
    // two products of numbers below 1, one sum
    for (const auto& result : results)
      EXPECT_LE(test::max_abs_error(result, results[0]), 3 * 1.2e-7) << pairs;
  }
}

TEST(Rope, RefusesBadShapes) {
  std::vector<float> x(8), angles(8);
  EXPECT_THROW(rope({}, View<float>(x.data(), 1, 8), 3, View<const float>(angles.data(), 1, 2)),
               Error);
  EXPECT_THROW(rope({}, View<float>(x.data(), 1, 8), 4, View<const float>(angles.data(), 1, 6)),
               Error);
  EXPECT_THROW(rope_frequencies(10000, 7), Error);
}

}  // namespace
}  // namespace onecard::ops
