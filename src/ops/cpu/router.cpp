#include "ops/router.h"

#include <cmath>
#include <limits>

#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"

namespace onecard::ops::cpu {
namespace {

float expert_score(float logit, float gate_temp) {
  const double x = double(logit) / gate_temp;
  return float(std::sqrt(x > 20 ? x : std::log1p(std::exp(x))));
}

void route_row(const float* logits, int64_t num_experts, std::span<const float> bias,
               const RouterOptions& options, int32_t* ids, float* weights, int64_t num_selected) {
  // Insertion into a short list, kept in order: ids[0..filled) by descending biased score. A later
  // expert moves up only past strictly smaller ones, so that equal scores keep the lower id first.
  int64_t filled = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    const float score = expert_score(logits[e], options.gate_temp);
    const float biased = score + bias[size_t(e)];
    int64_t place = filled;
    while (place > 0 && biased > weights[place - 1]) --place;
    if (place == num_selected) continue;
    if (filled < num_selected) ++filled;
    for (int64_t i = filled - 1; i > place; --i) {
      ids[i] = ids[i - 1];
      weights[i] = weights[i - 1];
    }
    ids[place] = int32_t(e);
    weights[place] = biased;
  }
  double sum = 0;
  for (int64_t i = 0; i < num_selected; ++i) {
    weights[i] = expert_score(logits[ids[i]], options.gate_temp);
    sum += weights[i];
  }
  const bool normalise = options.norm_topk_prob && num_selected > 1;
  for (int64_t i = 0; i < num_selected; ++i)
    weights[i] = float(options.routed_scaling_factor * weights[i] / (normalise ? sum + 1e-20 : 1));
}

}  // namespace

void route(const Exec& exec, View<const float> logits, std::span<const float> bias,
           const RouterOptions& options, View<int32_t> expert_ids, View<float> weights) {
  for_each_row_range(exec, logits.rows, 50 * logits.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      route_row(logits.row(t), logits.cols, bias, options, expert_ids.row(t), weights.row(t),
                expert_ids.cols);
  });
}

}  // namespace onecard::ops::cpu
