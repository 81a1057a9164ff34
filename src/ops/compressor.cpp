#include "ops/compressor.h"

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

}  // namespace onecard::ops
