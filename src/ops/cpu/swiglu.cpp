#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_kernels.h"

namespace onecard::ops::cpu {

void swiglu(const Exec& exec, View<const float> gate, View<const float> up,
            std::span<const float> weights, float limit, View<float> out) {
  const RowKernels& kernels = row_kernels(exec.isa);
  for_each_row_range(exec, gate.rows, 10 * gate.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      kernels.swiglu(gate.row(t), up.row(t), weights.empty() ? 1.0f : weights[size_t(t)], limit,
                     gate.cols, out.row(t));
  });
}

}  // namespace onecard::ops::cpu
