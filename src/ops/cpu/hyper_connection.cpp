#include "ops/hyper_connection.h"

#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_kernels.h"

namespace onecard::ops::cpu {

void hc_coefficients(const Exec& exec, View<const float> x, const HcSite& site,
                     const HcCoefficients& out) {
  constexpr int64_t kMaxMix = 80;  // (2 + 8) * 8
  const RowKernels& kernels = row_kernels(exec.isa);
  for_each_row_range(exec, x.rows, x.cols * site.fn.rows / 4, [&](int64_t begin, int64_t end) {
    float mix[kMaxMix];
    for (int64_t t = begin; t < end; ++t) {
      const double scale =
          1.0 / std::sqrt(kernels.sum_squares(x.row(t), x.cols) / double(x.cols) + site.norm_eps);
      for (int64_t i = 0; i < site.fn.rows; ++i)
        mix[i] = float(kernels.dot(site.fn.row(i), x.row(t), x.cols) * scale);
      hc_coefficients_from_mix({mix, 1, site.fn.rows}, site,
                               {out.pre.rows_between(t, t + 1), out.post.rows_between(t, t + 1),
                                out.comb.rows_between(t, t + 1)});
    }
  });
}

void hc_collapse_norm(const Exec& exec, View<const float> x, View<const float> mix,
                      std::span<const float> w, float eps, View<float> out) {
  const RowKernels& kernels = row_kernels(exec.isa);
  for_each_row_range(exec, x.rows, x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* row = out.row(t);
      kernels.collapse(x.row(t), mix.row(t), mix.cols, out.cols, row);
      const double mean = kernels.sum_squares(row, out.cols) / double(out.cols);
      kernels.scale(row, w.data(), float(1.0 / std::sqrt(mean + eps)), out.cols, row);
    }
  });
}

void hc_expand(const Exec& exec, View<const float> y, View<const float> post,
               View<const float> comb, View<float> x) {
  const RowKernels& kernels = row_kernels(exec.isa);
  for_each_row_range(exec, x.rows, 2 * x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      kernels.expand(y.row(t), post.row(t), comb.row(t), post.cols, y.cols, x.row(t));
  });
}

}  // namespace onecard::ops::cpu
