#include "ops/compressor.h"

#include "base/error.h"
#include "ops/check.h"
#include "ops/cpu/kernels.h"

namespace onecard::ops {

void pool_groups(const Exec& exec, View<const float> keys, View<const float> gates, int64_t ratio,
                 View<float> out) {
  require_cpu(exec, "pool_groups");
  require(ratio >= 1 && keys.same_shape(gates) && keys.rows == out.rows * ratio &&
              keys.cols == out.cols,
          ErrorCode::kInvalidArgument,
          "pool_groups: keys and gates must be [groups * ratio, dim], out [groups, dim]");
  cpu::pool_groups(exec, keys, gates, ratio, out);
}

}  // namespace onecard::ops
