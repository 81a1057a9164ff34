#include "engine/divergence.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace onecard::engine {

double log_sum_exp(std::span<const float> logits) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double(logit) - largest);
  return std::log(sum) + largest;
}

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
