// The CUDA backend of the ops: same contracts as the public headers, shapes already checked; work
// is queued on exec.stream. Without CUDA, ops/no_cuda.cpp refuses instead. Included by ops/*.cpp
// alone.
#pragma once

#include <span>

#include "device/exec.h"
#include "tensor/view.h"

namespace onecard::ops::cuda {

void rms_norm(const Exec& exec, View<const float> x, std::span<const float> w, float eps,
              View<float> out);

}  // namespace onecard::ops::cuda
