#include "ops/hyper_connection.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_kernels.h"

namespace onecard::ops::cpu {

namespace {

constexpr int64_t kMaxMix = 80;      // (2 + 8) * 8
constexpr int64_t kRowsAtOnce = 16;  // of x, for one pass over fn

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
  const int64_t num_mix = site.fn.rows, n = site.fn.cols;
  if (x.rows == 1) {  // a lone row: its dot products are divided instead
    double dots[kMaxMix];
    for_each_row_range(exec, num_mix, 2 * n, [&](int64_t begin, int64_t end) {
      kernels.dots(site.fn.row(begin), end - begin, x.row(0), n, 1, n, dots + begin);
    });
    return finish_row(kernels, site, x.row(0), dots, 0, out);
  }
  for_each_row_range(exec, x.rows, n * num_mix / 16, [&](int64_t begin, int64_t end) {
    double dots[kRowsAtOnce * kMaxMix];
    for (int64_t first = begin; first < end; first += kRowsAtOnce) {
      const int64_t num_rows = std::min(kRowsAtOnce, end - first);
      kernels.dots(site.fn.data, num_mix, x.row(first), x.stride, num_rows, n, dots);
      for (int64_t t = 0; t < num_rows; ++t)
        finish_row(kernels, site, x.row(first + t), dots + t * num_mix, first + t, out);
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
