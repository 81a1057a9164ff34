#include <algorithm>
#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"

namespace onecard::ops::cpu {

void pool_groups(const Exec& exec, View<const float> keys, View<const float> gates, int64_t ratio,
                 View<float> out) {
  for_each_row_range(exec, out.rows, 20 * ratio * out.cols, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      for (int64_t c = 0; c < out.cols; ++c) {
        double largest = gates.row(g * ratio)[c];
        for (int64_t i = 1; i < ratio; ++i)
          largest = std::max(largest, double(gates.row(g * ratio + i)[c]));
        double weight_sum = 0, sum = 0;
        for (int64_t i = 0; i < ratio; ++i) {
          const double weight = std::exp(gates.row(g * ratio + i)[c] - largest);
          weight_sum += weight;
          sum += weight * keys.row(g * ratio + i)[c];
        }
        out.row(g)[c] = float(sum / weight_sum);
      }
    }
  });
}

}  // namespace onecard::ops::cpu
