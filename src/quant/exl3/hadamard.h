// The 128-point Hadamard transform of the format: natural (Sylvester) order, scaled by 1/sqrt(128),
// so that it is its own inverse.
#pragma once

#include <span>

#include "quant/exl3/matrix.h"

namespace onecard::exl3 {

/// Transforms every block of 128 in place. data.size() must be a multiple of 128.
void hadamard(std::span<double> data);
void hadamard(std::span<float> data);

}  // namespace onecard::exl3
