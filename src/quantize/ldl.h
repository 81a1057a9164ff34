// Block LDL^T of a symmetric positive definite matrix, for error feedback.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/exec.h"

namespace onecard::quantize {

/// H = L D L^T with L unit lower triangular in blocks of `block` (identity blocks on the diagonal).
/// Returns L, [size, size] row-major, or nothing when H is not positive definite. size % block ==
/// 0.
std::vector<float> block_ldl(const Exec& exec, std::span<const double> h, int64_t size,
                             int64_t block);

}  // namespace onecard::quantize
