// Rows of logits as distributions, and how far two of them are from each other.
#pragma once

#include <span>

namespace onecard::engine {

/// log(sum(exp(logits))): a logit less this is its log probability. `logits` is not empty.
double log_sum_exp(std::span<const float> logits);

/// KL(p || q) in nats of the distributions that two rows of logits of one size stand for.
double divergence(std::span<const float> p, std::span<const float> q);

}  // namespace onecard::engine
