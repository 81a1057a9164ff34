// EXL3 products on the device. Included by ops/cuda alone.
#pragma once

#include <cstdint>
#include <span>

#include "device/exec.h"
#include "ops/linear.h"
#include "tensor/view.h"

namespace onecard::ops::cuda {

/// Blocks of 128 inputs that are summed in one go: a function of the shape alone.
int exl3_slice_blocks(int64_t in_blocks, int64_t out_groups);

/// Every call's weight is EXL3; all have the same number of rows.
void exl3_linear(const Exec& exec, std::span<const LinearCall> calls);

}  // namespace onecard::ops::cuda
