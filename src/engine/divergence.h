// How far predictions are from each other.
#pragma once

#include <span>

namespace onecard::engine {

/// KL(p || q) in nats of the distributions that two rows of logits of one size stand for.
double divergence(std::span<const float> p, std::span<const float> q);

}  // namespace onecard::engine
