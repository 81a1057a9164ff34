#include "quantize/ldl.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/thread_pool.h"

namespace onecard::quantize {
namespace {

void for_tasks(const Exec& exec, int64_t num_tasks, const std::function<void(int64_t, int)>& task) {
  if (exec.pool != nullptr) return exec.pool->run(num_tasks, task);
  for (int64_t i = 0; i < num_tasks; ++i) task(i, 0);
}

// Right-looking Cholesky in panels: c becomes the lower triangular factor; false when a pivot is
// not positive. The strictly upper part is left as it was.
bool cholesky(const Exec& exec, std::vector<double>& c, int64_t n) {
  constexpr int64_t kPanel = 64;
  const auto at = [&](int64_t r, int64_t col) -> double& { return c[size_t(r * n + col)]; };
  for (int64_t p = 0; p < n; p += kPanel) {
    const int64_t end = std::min(n, p + kPanel);
    for (int64_t j = p; j < end; ++j) {
      for (int64_t k = p; k < j; ++k)
        for (int64_t r = j; r < end; ++r) at(r, j) -= at(r, k) * at(j, k);
      if (!(at(j, j) > 0) || !std::isfinite(at(j, j))) return false;
      at(j, j) = std::sqrt(at(j, j));
      for (int64_t r = j + 1; r < end; ++r) at(r, j) /= at(j, j);
    }
    // The panel's rows below, then what they take from the rest: each row on its own.
    for_tasks(exec, n - end, [&](int64_t task, int) {
      double* const row = &at(end + task, 0);
      for (int64_t j = p; j < end; ++j) {
        double sum = row[j];
        for (int64_t k = p; k < j; ++k) sum -= row[k] * at(j, k);
        row[j] = sum / at(j, j);
      }
    });
    for_tasks(exec, n - end, [&](int64_t task, int) {
      double* const row = &at(end + task, 0);
      for (int64_t col = end; col <= end + task; ++col) {
        const double* const other = &at(col, 0);
        double sum = 0;
        for (int64_t k = p; k < end; ++k) sum += row[k] * other[k];
        row[col] -= sum;
      }
    });
  }
  return true;
}

}  // namespace

std::vector<float> block_ldl(const Exec& exec, std::span<const double> h, int64_t size,
                             int64_t block) {
  std::vector<double> c(h.begin(), h.end());
  if (!cholesky(exec, c, size)) return {};
  std::vector<float> l(size_t(size * size));
  // Column block b of L is that of C times the inverse of C's diagonal block: solve row by row from
  // the right, x C_bb = row.
  for_tasks(exec, size, [&](int64_t r, int) {
    std::vector<double> x(static_cast<size_t>(block));
    for (int64_t b = 0; b <= r / block; ++b) {
      for (int64_t j = block - 1; j >= 0; --j) {
        const int64_t col = b * block + j;
        double sum = col <= r ? c[size_t(r * size + col)] : 0;
        for (int64_t k = j + 1; k < block; ++k)
          sum -= x[size_t(k)] * c[size_t((b * block + k) * size + col)];
        x[size_t(j)] = sum / c[size_t(col * size + col)];
        l[size_t(r * size + col)] = float(x[size_t(j)]);
      }
    }
  });
  return l;
}

}  // namespace onecard::quantize
