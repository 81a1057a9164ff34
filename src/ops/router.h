#pragma once

#include <cstdint>
#include <span>

#include "device/exec.h"
#include "tensor/view.h"

namespace onecard::ops {

struct RouterOptions {
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1.5f;
  float gate_temp = 1;
};

/// score[e] = sqrt(softplus(logits[t,e] / gate_temp)), softplus(x) = log(1 + exp(x)), x beyond 20.
/// Selected are the expert_ids.cols highest of score + bias, equal ones by lower id first, in that
/// order. weights = scaling * score / (sum of the selected scores + 1e-20); not divided by the sum
/// when norm_topk_prob is off or one expert is selected.
/// logits: [tokens, experts]; bias: [experts]; expert_ids, weights: [tokens, experts_per_token].
void route(const Exec& exec, View<const float> logits, std::span<const float> bias,
           const RouterOptions& options, View<int32_t> expert_ids, View<float> weights);

}  // namespace onecard::ops
