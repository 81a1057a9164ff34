#include <cmath>

#include "ops/cpu/kernels.h"

namespace onecard::ops::cpu {

void rms_norm(const Exec&, View<const float> x, std::span<const float> w, float eps,
              View<float> out) {
  for (int64_t t = 0; t < x.rows; ++t) {
    double sum = 0;  // f64: the plain path is the reference that every other path is held to
    for (int64_t c = 0; c < x.cols; ++c) sum += double(x.row(t)[c]) * x.row(t)[c];
    const float scale = float(1.0 / std::sqrt(sum / double(x.cols) + eps));
    for (int64_t c = 0; c < x.cols; ++c) out.row(t)[c] = x.row(t)[c] * scale * w[c];
  }
}

}  // namespace onecard::ops::cpu
