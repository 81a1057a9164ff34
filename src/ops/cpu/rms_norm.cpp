#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_kernels.h"

namespace onecard::ops::cpu {

void rms_norm(const Exec& exec, View<const float> x, std::span<const float> w, float eps,
              View<float> out) {
  const RowKernels& kernels = row_kernels(exec.isa);
  for_each_row_range(exec, x.rows, 2 * x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const double mean = kernels.sum_squares(x.row(t), x.cols) / double(x.cols);
      kernels.scale(x.row(t), w.data(), float(1.0 / std::sqrt(mean + eps)), x.cols, out.row(t));
    }
  });
}

}  // namespace onecard::ops::cpu
