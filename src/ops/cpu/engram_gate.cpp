#include <algorithm>
#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_kernels.h"

namespace onecard::ops::cpu {

void engram_gate_add(const Exec& exec, View<const float> key_val, std::span<const float> qk,
                     float eps, View<float> x) {
  const RowKernels& kernels = row_kernels(exec.isa);
  const int64_t hidden = key_val.cols - x.cols;
  for_each_row_range(exec, x.rows, 4 * x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* val = key_val.row(t) + x.cols;
      for (int64_t c = 0; c < x.cols; c += hidden) {
        float* stream = x.row(t) + c;
        const float* key = key_val.row(t) + c;
        const double stream_mean = kernels.sum_squares(stream, hidden) / double(hidden);
        const double key_mean = kernels.sum_squares(key, hidden) / double(hidden);
        const double d = kernels.dot3(stream, qk.data() + c, key, hidden) /
                         std::sqrt(stream_mean + eps) / std::sqrt(key_mean + eps) /
                         std::sqrt(double(hidden));
        const double root = std::copysign(std::sqrt(std::max(std::fabs(d), 1e-6)), d);
        kernels.add_scaled(float(1.0 / (1.0 + std::exp(-root))), val, hidden, stream);
      }
    }
  });
}

}  // namespace onecard::ops::cpu
