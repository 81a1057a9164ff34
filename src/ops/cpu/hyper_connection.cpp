#include "ops/hyper_connection.h"

#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_kernels.h"

namespace onecard::ops::cpu {

namespace {

constexpr int64_t kMaxMix = 80;  // (2 + 8) * 8

/// mix[i] = fn row i . x for rows [begin, end) of fn, not yet scaled.
void dot_rows(const RowKernels& kernels, const HcSite& site, const float* x, int64_t begin,
              int64_t end, double* mix) {
  for (int64_t i = begin; i < end; ++i) mix[i] = kernels.dot(site.fn.row(i), x, site.fn.cols);
}

void finish_row(const RowKernels& kernels, const HcSite& site, const float* x, const double* dots,
                int64_t t, const HcCoefficients& out) {
  const double mean = kernels.sum_squares(x, site.fn.cols) / double(site.fn.cols);
  const double scale = 1.0 / std::sqrt(mean + site.norm_eps);
  float mix[kMaxMix];
  for (int64_t i = 0; i < site.fn.rows; ++i) mix[i] = float(dots[i] * scale);
  hc_coefficients_from_mix({mix, 1, site.fn.rows}, site,
                           {out.pre.rows_between(t, t + 1), out.post.rows_between(t, t + 1),
                            out.comb.rows_between(t, t + 1)});
}

}  // namespace

void hc_coefficients(const Exec& exec, View<const float> x, const HcSite& site,
                     const HcCoefficients& out) {
  const RowKernels& kernels = row_kernels(exec.isa);
  const int64_t row_cost = x.cols * site.fn.rows / 4;
  if (x.rows == 1) {  // a lone row: its dot products are divided instead
    double dots[kMaxMix];
    for_each_row_range(exec, site.fn.rows, 2 * x.cols, [&](int64_t begin, int64_t end) {
      dot_rows(kernels, site, x.row(0), begin, end, dots);
    });
    return finish_row(kernels, site, x.row(0), dots, 0, out);
  }
  for_each_row_range(exec, x.rows, row_cost, [&](int64_t begin, int64_t end) {
    double dots[kMaxMix];
    for (int64_t t = begin; t < end; ++t) {
      dot_rows(kernels, site, x.row(t), 0, site.fn.rows, dots);
      finish_row(kernels, site, x.row(t), dots, t, out);
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
