#include "quant/exl3/reconstruct.h"

#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "quant/exl3/hadamard.h"
#include "quant/exl3/tile.h"
#include "tensor/dtype.h"

namespace onecard::exl3 {

void check_matrix(const MatrixView& matrix) {
  const bool dims_fit = matrix.in_features > 0 && matrix.in_features % kGroupDim == 0 &&
                        matrix.out_features > 0 && matrix.out_features % kGroupDim == 0;
  const bool scales_fit = int64_t(matrix.suh.size()) == matrix.in_features &&
                          int64_t(matrix.svh.size()) == matrix.out_features;
  if (dims_fit && scales_fit && matrix.bits >= 1 && matrix.bits <= 8 && matrix.data != nullptr)
    return;
  throw Error(ErrorCode::kInvalidArgument,
              "exl3 matrix: in " + std::to_string(matrix.in_features) + ", out " +
                  std::to_string(matrix.out_features) + ", bits " + std::to_string(matrix.bits) +
                  ", suh " + std::to_string(matrix.suh.size()) + ", svh " +
                  std::to_string(matrix.svh.size()) +
                  ": both dimensions must be multiples of 128, bits 1..8, and the scales as long");
}

void decode_inner(const MatrixView& matrix, View<float> out) {
  check_matrix(matrix);
  require(out.rows == matrix.in_features && out.cols == matrix.out_features,
          ErrorCode::kInvalidArgument, "exl3 decode: out must be [in_features, out_features]");
  std::array<float, kTileWeights> tile;
  for (int64_t a = 0; a < matrix.in_features / kTileDim; ++a)
    for (int64_t b = 0; b < matrix.out_features / kTileDim; ++b) {
      decode_tile(matrix.tile(a, b), matrix.bits, matrix.codebook, tile);
      for (int64_t r = 0; r < kTileDim; ++r)
        for (int64_t c = 0; c < kTileDim; ++c)
          out.row(a * kTileDim + r)[b * kTileDim + c] = tile[size_t(r * kTileDim + c)];
    }
}

void reconstruct(const MatrixView& matrix, View<float> out) {
  decode_inner(matrix, out);
  const int64_t n = matrix.out_features;
  std::vector<double> block(size_t(kGroupDim * n));  // one Hadamard block of input rows
  std::array<double, kGroupDim> column;
  for (int64_t base = 0; base < matrix.in_features; base += kGroupDim) {
    for (int64_t r = 0; r < kGroupDim; ++r)
      for (int64_t c = 0; c < n; ++c) block[size_t(r * n + c)] = double(out.row(base + r)[c]);
    hadamard(block);
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t r = 0; r < kGroupDim; ++r) column[size_t(r)] = block[size_t(r * n + c)];
      hadamard(column);
      const double scale = f16_to_f32(matrix.svh[size_t(c)]);
      for (int64_t r = 0; r < kGroupDim; ++r)
        out.row(base + r)[c] =
            float(column[size_t(r)] * scale * double(f16_to_f32(matrix.suh[size_t(base + r)])));
    }
  }
}

}  // namespace onecard::exl3
