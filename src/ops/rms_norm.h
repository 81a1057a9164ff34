#pragma once

#include <span>

#include "device/exec.h"
#include "tensor/view.h"

namespace onecard::ops {

/// out[t,:] = w * x[t,:] / sqrt(mean(x[t,:]^2) + eps)      RMSNorm, Zhang & Sennrich 2019
/// x, out: [tokens, hidden] f32; w: [hidden] f32. out may be x itself.
/// CUDA: queued on exec.stream; returns before it has run. Throws kInvalidArgument on a bad shape.
void rms_norm(const Exec& exec, View<const float> x, std::span<const float> w, float eps,
              View<float> out);

}  // namespace onecard::ops
