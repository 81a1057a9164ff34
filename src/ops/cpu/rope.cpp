#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_kernels.h"

namespace onecard::ops::cpu {

void rope(const Exec& exec, View<float> x, int64_t dim, View<const float> angles, bool inverse) {
  const RowKernels& kernels = row_kernels(exec.isa);
  const float sign = inverse ? -1.0f : 1.0f;
  const int64_t row_cost = x.cols / dim * angles.cols;
  for_each_row_range(exec, x.rows, row_cost, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t c = dim; c <= x.cols; c += dim)  // c: the end of a vector
        kernels.rotate(x.row(t) + c - angles.cols, angles.row(t), sign, angles.cols / 2);
  });
}

}  // namespace onecard::ops::cpu
