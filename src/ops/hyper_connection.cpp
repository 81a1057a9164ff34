#include "ops/hyper_connection.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/kernels.h"

namespace onecard::ops {
namespace {

constexpr int64_t kMaxStreams = 8;

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

using Matrix = std::array<double, kMaxStreams * kMaxStreams>;

void divide_rows(Matrix& c, int64_t n, double eps) {
  for (int64_t i = 0; i < n; ++i) {
    double sum = eps;
    for (int64_t k = 0; k < n; ++k) sum += c[i * n + k];
    for (int64_t k = 0; k < n; ++k) c[i * n + k] /= sum;
  }
}

void divide_columns(Matrix& c, int64_t n, double eps) {
  for (int64_t k = 0; k < n; ++k) {
    double sum = eps;
    for (int64_t i = 0; i < n; ++i) sum += c[i * n + k];
    for (int64_t i = 0; i < n; ++i) c[i * n + k] /= sum;
  }
}

void row_coefficients(const float* m, const HcSite& site, int64_t n, float* pre, float* post,
                      float* comb) {
  const double eps = site.hc_eps;
  const auto value = [&](int64_t idx, int part) {
    return double(m[idx]) * site.scale[size_t(part)] + site.base[size_t(idx)];
  };
  for (int64_t i = 0; i < n; ++i) {
    pre[i] = float(sigmoid(value(i, 0)) + eps);
    post[i] = float(2 * sigmoid(value(n + i, 1)));
  }
  Matrix c;
  for (int64_t i = 0; i < n; ++i) {
    double* row = &c[size_t(i * n)];
    for (int64_t k = 0; k < n; ++k) row[k] = value(2 * n + i * n + k, 2);
    const double largest = *std::max_element(row, row + n);
    double sum = 0;
    for (int64_t k = 0; k < n; ++k) sum += row[k] = std::exp(row[k] - largest);
    for (int64_t k = 0; k < n; ++k) row[k] = row[k] / sum + eps;
  }
  divide_columns(c, n, eps);
  for (int64_t iteration = 1; iteration < site.sinkhorn_iters; ++iteration) {
    divide_rows(c, n, eps);
    divide_columns(c, n, eps);
  }
  for (int64_t i = 0; i < n * n; ++i) comb[i] = float(c[size_t(i)]);
}

}  // namespace

void hc_coefficients_from_mix(View<const float> m, const HcSite& site, const HcCoefficients& out) {
  const int64_t n = out.pre.cols;
  require(n >= 1 && n <= kMaxStreams && m.cols == (2 + n) * n && out.post.cols == n &&
              out.comb.cols == n * n && int64_t(site.base.size()) == m.cols &&
              site.scale.size() == 3 && out.pre.rows >= m.rows && out.post.rows >= m.rows &&
              out.comb.rows >= m.rows,
          ErrorCode::kInvalidArgument,
          "hc_coefficients: shapes do not fit hc_mult, which is at most 8");
  for (int64_t t = 0; t < m.rows; ++t)
    row_coefficients(m.row(t), site, n, out.pre.row(t), out.post.row(t), out.comb.row(t));
}

void hc_begin(const Exec& exec, View<const float> y, View<float> x, View<float> mix) {
  require(x.cols == mix.cols * y.cols && x.rows == y.rows && x.rows == mix.rows,
          ErrorCode::kInvalidArgument,
          "hc_begin: y must be [tokens, hidden], x [tokens, hc_mult * hidden], mix [tokens, "
          "hc_mult]");
  if (exec.backend == Backend::kCuda) return cuda::hc_begin(exec, y, x, mix);
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t j = 0; j < mix.cols; ++j) {
      float* const stream = x.row(t) + j * y.cols;
      if (stream != y.row(t)) std::copy_n(y.row(t), y.cols, stream);
      mix.row(t)[j] = j == 0 ? 1.0f : 0.0f;
    }
  }
}

void hc_coefficients(const Exec& exec, View<const float> x, const HcSite& site,
                     const HcCoefficients& out) {
  const int64_t n = out.pre.cols;
  require(n >= 1 && n <= kMaxStreams && site.fn.rows == (2 + n) * n && site.fn.cols == x.cols &&
              site.fn.stride == site.fn.cols && out.pre.rows == x.rows && out.post.rows == x.rows &&
              out.comb.rows == x.rows,
          ErrorCode::kInvalidArgument,
          "hc_coefficients: fn must be [(2 + hc_mult) * hc_mult, columns of x], in one piece");
  if (x.rows == 0) return;
  if (exec.backend == Backend::kCuda) return cuda::hc_coefficients(exec, x, site, out);
  cpu::hc_coefficients(exec, x, site, out);
}

void hc_collapse_norm(const Exec& exec, View<const float> x, View<const float> mix,
                      std::span<const float> w, float eps, View<float> out) {
  require(x.cols == mix.cols * out.cols && x.rows == mix.rows && x.rows == out.rows &&
              int64_t(w.size()) == out.cols,
          ErrorCode::kInvalidArgument,
          "hc_collapse_norm: x must be [tokens, hc_mult * hidden], mix [tokens, hc_mult], out "
          "[tokens, hidden]");
  if (exec.backend == Backend::kCuda) return cuda::hc_collapse_norm(exec, x, mix, w, eps, out);
  cpu::hc_collapse_norm(exec, x, mix, w, eps, out);
}

void hc_expand(const Exec& exec, View<const float> y, View<const float> post,
               View<const float> comb, View<float> x) {
  require(x.cols == post.cols * y.cols && comb.cols == post.cols * post.cols && x.rows == y.rows &&
              x.rows == post.rows && x.rows == comb.rows && post.cols <= kMaxStreams,
          ErrorCode::kInvalidArgument,
          "hc_expand: x must be [tokens, hc_mult * hidden], y [tokens, hidden], post and comb "
          "[tokens, hc_mult] and [tokens, hc_mult^2]");
  if (exec.backend == Backend::kCuda) return cuda::hc_expand(exec, y, post, comb, x);
  cpu::hc_expand(exec, y, post, comb, x);
}

}  // namespace onecard::ops
