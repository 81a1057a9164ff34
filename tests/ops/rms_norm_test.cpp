#include "ops/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "support/compare.h"

namespace onecard::ops {
namespace {

TEST(RmsNorm, HandWorkedRow) {
  const std::vector<float> x{3, 4, 0, 0};  // mean square 6.25, root 2.5
  const std::vector<float> w{1, 2, 1, 1};
  std::vector<float> out(4);
  rms_norm({}, View<const float>(x.data(), 1, 4), w, 0.0f, View<float>(out.data(), 1, 4));
  EXPECT_LE(test::max_abs_error(out, std::vector<float>{1.2f, 3.2f, 0, 0}), 1e-6);
}

TEST(RmsNorm, EpsBoundsTinyRows) {
  const std::vector<float> x(8, 1e-12f), w(8, 1.0f);
  std::vector<float> out(8);
  rms_norm({}, View<const float>(x.data(), 1, 8), w, 1e-20f, View<float>(out.data(), 1, 8));
  // mean square 1e-24 beside eps 1e-20: 1e-12 / sqrt(1.0001e-20)
  EXPECT_NEAR(out[0], 1e-12 / std::sqrt(1e-24 + 1e-20), 1e-6 * 1e-2);
}

TEST(RmsNorm, RefusesBadShapes) {
  std::vector<float> x(6), w(4), out(6);
  EXPECT_THROW(rms_norm({}, View<const float>(x.data(), 2, 3), w, 0, View<float>(out.data(), 2, 3)),
               Error);
}

}  // namespace
}  // namespace onecard::ops
