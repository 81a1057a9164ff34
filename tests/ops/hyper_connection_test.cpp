#include "ops/hyper_connection.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/error.h"
#include "ops/cpu_isas.h"
#include "support/compare.h"

namespace onecard::ops {
namespace {

TEST(HyperConnection, PublishedCoefficients) {
  std::vector<float> m, base;
  for (int i = 0; i < 24; ++i) {
    m.push_back((float(29 * i % 24) - 11.5f) / 8);
    base.push_back((float(17 * i % 24) - 11.5f) / 16);
  }
  const std::vector<float> scale{1, 0.75f, 1.25f};
  HcSite site;
  site.base = base;
  site.scale = scale;
  std::vector<float> pre(4), post(4), comb(16);
  hc_coefficients_from_mix(View<const float>(m.data(), 1, 24), site,
                           {{pre.data(), 1, 4}, {post.data(), 1, 4}, {comb.data(), 1, 16}});
  const double printed = 1e-7;  // seven decimals
  EXPECT_LE(
      test::max_abs_error(pre, std::vector<float>{0.1037496f, 0.3849131f, 0.4301483f, 0.4765807f}),
      printed);
  EXPECT_LE(
      test::max_abs_error(post, std::vector<float>{1.5810606f, 0.5819617f, 0.5949399f, 1.3238458f}),
      2 * printed);
  EXPECT_LE(
      test::max_abs_error(comb, std::vector<float>{0.5351367f, 0.4048575f, 0.0060050f, 0.0539999f,
                                                   0.2502672f, 0.1893391f, 0.5351381f, 0.0252546f,
                                                   0.1221685f, 0.0924260f, 0.2612260f, 0.5241785f,
                                                   0.0924267f, 0.3133765f, 0.1976299f, 0.3965659f}),
      printed);
}

TEST(HyperConnection, StatisticIsOneOverAllStreams) {
  // fn picks column 0; X = (3, 4 | 0, 0): mean square 25 / 4, so m = 3 / 2.5.
  std::vector<float> fn(8 * 4, 0.0f);
  fn[0] = 1;
  const std::vector<float> base(8, 0.0f), scale{1, 1, 1}, x{3, 4, 0, 0};
  HcSite site;
  site.fn = {fn.data(), 8, 4};
  site.base = base;
  site.scale = scale;
  site.hc_eps = 0;
  for (const cpu::Isa isa : test::cpu_isas()) {
    std::vector<float> pre(2), post(2), comb(4);
    hc_coefficients({.isa = isa}, View<const float>(x.data(), 1, 4), site,
                    {{pre.data(), 1, 2}, {post.data(), 1, 2}, {comb.data(), 1, 4}});
    EXPECT_NEAR(pre[0], 1 / (1 + std::exp(-1.2)), 1e-7);
    EXPECT_NEAR(pre[1], 0.5, 1e-7);
    EXPECT_NEAR(post[0], 1, 1e-7);
  }
}

// A comb that is not symmetric: contracted over its first index, or the streams are swapped.
TEST(HyperConnection, ExpandContractsTheFirstIndexOfComb) {
  for (const cpu::Isa isa : test::cpu_isas()) {
    const std::vector<float> y{1, 10}, post{2, 3}, comb{0, 1, 0.5f, 0};
    std::vector<float> x{100, 200, 1000, 2000};
    hc_expand({.isa = isa}, View<const float>(y.data(), 1, 2), View<const float>(post.data(), 1, 2),
              View<const float>(comb.data(), 1, 4), View<float>(x.data(), 1, 4));
    // stream 0 = 2 y + 0.5 X[1]; stream 1 = 3 y + X[0]
    EXPECT_EQ(x, (std::vector<float>{502, 1020, 103, 230}));
  }
}

TEST(HyperConnection, CollapseThenNorm) {
  for (const cpu::Isa isa : test::cpu_isas()) {
    const std::vector<float> x{1, 2, 2, 2}, mix{1, 1}, w{1, 2};  // sums (3, 4): root mean 3.5355
    std::vector<float> out(2);
    hc_collapse_norm({.isa = isa}, View<const float>(x.data(), 1, 4),
                     View<const float>(mix.data(), 1, 2), w, 0, View<float>(out.data(), 1, 2));
    EXPECT_NEAR(out[0], 3 / std::sqrt(12.5), 1e-6);
    EXPECT_NEAR(out[1], 8 / std::sqrt(12.5), 1e-6);
  }
}

TEST(HyperConnection, IsasAgree) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const auto noise = [&](size_t size) {
    std::vector<float> values(size);
    for (float& value : values) value = normal(random);
    return values;
  };
  for (const int64_t streams : {1, 2, 3, 4, 8}) {
    for (const int64_t hidden : {1, 7, 8, 13, 64, 385}) {
      const int64_t rows = 3;
      const auto x = noise(size_t(rows * streams * hidden)), y = noise(size_t(rows * hidden));
      const auto post = noise(size_t(rows * streams));
      const auto comb = noise(size_t(rows * streams * streams));
      std::vector<std::vector<float>> results;
      for (const cpu::Isa isa : test::cpu_isas()) {
        results.push_back(x);
        hc_expand({.isa = isa}, View<const float>(y.data(), rows, hidden),
                  View<const float>(post.data(), rows, streams),
                  View<const float>(comb.data(), rows, streams * streams),
                  View<float>(results.back().data(), rows, streams * hidden));
      }
      // streams + 1 products of numbers up to about 4, summed in f32
      const double bound = double(streams + 1) * 16 * std::numeric_limits<float>::epsilon();
      for (const auto& result : results)
        EXPECT_LE(test::max_abs_error(result, results[0]), bound) << streams << " x " << hidden;
    }
  }
}

}  // namespace
}  // namespace onecard::ops
