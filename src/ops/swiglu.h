#pragma once

#include <cstdint>
#include <span>

#include "device/exec.h"
#include "tensor/view.h"

namespace onecard::ops {

/// out[t,i] = weights[t] * silu(min(gate[t,i], limit)) * clamp(up[t,i], -limit, limit)
/// silu(x) = x / (1 + exp(-x)); the gate is clamped from above only. weights: [tokens], or empty
/// for 1. gate, up, out: [tokens, intermediate] f32; out may be gate or up.
void swiglu(const Exec& exec, View<const float> gate, View<const float> up,
            std::span<const float> weights, float limit, View<float> out);

}  // namespace onecard::ops
