// A whole matrix in the plain: what every kernel is held to.
#pragma once

#include "quant/exl3/matrix.h"
#include "tensor/view.h"

namespace onecard::exl3 {

/// Throws kInvalidArgument unless the view describes a matrix: dimensions positive multiples of
/// 128, bits 1..8, data present, scales of the right length.
void check_matrix(const MatrixView& matrix);

/// The inner matrix Wi, decoded. out: [in_features, out_features].
void decode_inner(const MatrixView& matrix, View<float> out);

/// W = diag(suh) H Wi H diag(svh), sums in f64, rounded once. out: [in_features, out_features].
void reconstruct(const MatrixView& matrix, View<float> out);

}  // namespace onecard::exl3
