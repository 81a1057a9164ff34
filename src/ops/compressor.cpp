#include "ops/compressor.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/kernels.h"

namespace onecard::ops {

void pool_groups(const Exec& exec, View<const float> keys, View<const float> gates, int64_t ratio,
                 View<float> out) {
  require(ratio >= 1 && keys.same_shape(gates) && keys.rows == out.rows * ratio &&
              keys.cols == out.cols,
          ErrorCode::kInvalidArgument,
          "pool_groups: keys and gates must be [groups * ratio, dim], out [groups, dim]");
  if (exec.backend == Backend::kCuda) return cuda::pool_groups(exec, keys, gates, ratio, out);
  cpu::pool_groups(exec, keys, gates, ratio, out);
}

void pool_open_groups(const Exec& exec, View<const float> keys, View<const float> gates,
                      const OpenGroups& open, int64_t ratio, View<float> out) {
  require(ratio >= 1 && keys.same_shape(gates) && keys.same_shape(out) &&
              int64_t(open.positions.size()) == keys.rows &&
              open.key_rings.size() == open.positions.size() &&
              open.gate_rings.size() == open.positions.size() && open.num_slots >= ratio - 1,
          ErrorCode::kInvalidArgument,
          "pool_open_groups: keys, gates and out must be [tokens, dim], a position and two rings a "
          "token, which hold the others of a group");
  if (exec.backend == Backend::kCuda)
    return cuda::pool_open_groups(exec, keys, gates, open, ratio, out);
  const int64_t dim = keys.cols;
  std::vector<float> group(size_t(2 * ratio * dim));
  const View<float> group_keys(group.data(), ratio, dim);
  const View<float> group_gates(group.data() + ratio * dim, ratio, dim);
  for (int64_t t = 0; t < keys.rows; ++t) {
    const int64_t position = open.positions[size_t(t)];
    if ((position + 1) % ratio != 0) {
      std::fill_n(out.row(t), dim, 0.0f);
      continue;
    }
    const auto copy = [&](const std::byte* ring, const float* newest, View<float> to) {
      for (int64_t i = 0; i + 1 < ratio; ++i)
        std::copy_n(reinterpret_cast<const float*>(ring) +
                        (position + 1 - ratio + i) % open.num_slots * dim,
                    dim, to.row(i));
      std::copy_n(newest, dim, to.row(ratio - 1));
    };
    copy(open.key_rings[size_t(t)], keys.row(t), group_keys);
    copy(open.gate_rings[size_t(t)], gates.row(t), group_gates);
    cpu::pool_groups(exec, group_keys, group_gates, ratio, out.rows_between(t, t + 1));
  }
}

}  // namespace onecard::ops
