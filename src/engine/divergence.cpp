#include "engine/divergence.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace onecard::engine {
namespace {

double log_sum_exp(std::span<const float> row) {
  const float largest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float value : row) sum += std::exp(double(value) - largest);
  return std::log(sum) + largest;
}

}  // namespace

double divergence(std::span<const float> p, std::span<const float> q) {
  const double log_p = log_sum_exp(p), log_q = log_sum_exp(q);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double a = p[i] - log_p, b = q[i] - log_q;
    kl += std::exp(a) * (a - b);
  }
  return kl;
}

}  // namespace onecard::engine
