// One matrix into EXL3: rotation, scales, global scale search, trellis encoding, and error feedback
// when the inputs' second moments are known (LDLQ: QuIP#, Tseng et al. 2024; trellis: QTIP, Tseng
// et al. 2024).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "device/exec.h"
#include "quant/exl3/matrix.h"
#include "tensor/view.h"

namespace onecard::quantize {

struct MatrixOptions {
  int bits = 3;
  exl3::Codebook codebook = exl3::Codebook::kMul1;
  uint64_t seed = 0;           // of the random signs
  bool error_feedback = true;  // use the Hessian, where one is given
};

struct QuantizedMatrix {
  int64_t in_features = 0;
  int64_t out_features = 0;
  int bits = 0;
  exl3::Codebook codebook = exl3::Codebook::kMul1;
  std::vector<uint16_t> trellis;  // native layout: [in/16, out/16, 16 * bits]
  std::vector<uint16_t> suh;      // fp16
  std::vector<uint16_t> svh;

  double scale = 0;           // g: what the rotated weights were multiplied by
  double relative_error = 0;  // |Q - X|^2 / |X|^2 of the rotated weights
  /// tr(E^T H E) / tr(X^T H X) in the rotated basis; nothing without a Hessian.
  std::optional<double> proxy_error;

  exl3::MatrixView view() const;  // borrows from this
};

/// Quantises w [out_features, in_features] (as checkpoints store it). Both must be multiples of
/// 128. `hessian`: sum over samples of x x^T, [in, in], or empty; only its shape matters, not its
/// size. Uses exec.pool and exec.isa; the result does not depend on the number of threads. Throws
/// kInvalidArgument on a bad shape or weights that are not finite.
QuantizedMatrix quantize_matrix(const Exec& exec, View<const float> w,
                                std::span<const double> hessian, const MatrixOptions& options);

/// The signs of a matrix come from its name, so that a module is quantised alike in every run.
uint64_t seed_of(std::string_view name);

}  // namespace onecard::quantize
