#include "support/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace onecard::test {

double max_abs_error(std::span<const float> got, std::span<const float> want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(double(got[i]) - want[i]);
    if (!(error <= std::numeric_limits<double>::max()))
      return std::numeric_limits<double>::infinity();
    worst = std::max(worst, error);
  }
  return worst;
}

double max_rel_error(std::span<const float> got, std::span<const float> want) {
  double largest = 0;
  for (const float value : want) largest = std::max(largest, std::fabs(double(value)));
  const double error = max_abs_error(got, want);
  return error == 0 ? 0 : error / largest;
}

double rel_rms_error(std::span<const float> got, std::span<const float> want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
    norm += double(want[i]) * want[i];
  }
  return error == 0 ? 0 : std::sqrt(error / norm);
}

}  // namespace onecard::test
