// Dense EXL3 matrices on the strip kernels.
#pragma once

#include "device/exec.h"
#include "ops/exl3_kernels.h"
#include "tensor/view.h"

namespace onecard::ops::cpu {

/// out = x W, with activations quantised as `precision` says (kF32 where the codebook needs it).
/// x: [rows, in] f32; out: [rows, out] f32, not x. A row's result depends neither on the other rows
/// nor on the number of threads. Shapes are already checked.
void exl3_linear(const Exec& exec, Exl3Precision precision, View<const float> x,
                 const exl3::MatrixView& w, View<float> out);

}  // namespace onecard::ops::cpu
