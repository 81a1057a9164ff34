#pragma once

#include <cstdint>
#include <span>

#include "device/exec.h"
#include "tensor/view.h"

namespace onecard::ops {

/// Adds what the n-gram memory holds to every stream j, as far as it agrees with it:
///   d       = sum_i x[j,i] qk[j,i] key[j,i] / sqrt(mean(x[j]^2) + eps) / sqrt(mean(key[j]^2) +
///   eps)
///             / sqrt(hidden)
///   g       = sigmoid(sign(d) sqrt(max(|d|, 1e-6)))
///   x[j,:] += g val[:]
/// key_val: [tokens, (hc_mult + 1) * hidden], the keys of all streams, then val; qk: [hc_mult *
/// hidden], the product of the two learned weights; x: [tokens, hc_mult * hidden], in place.
void engram_gate_add(const Exec& exec, View<const float> key_val, std::span<const float> qk,
                     float eps, View<float> x);

}  // namespace onecard::ops
