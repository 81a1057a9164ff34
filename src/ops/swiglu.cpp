#include "ops/swiglu.h"

#include "base/error.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/kernels.h"

namespace onecard::ops {

void swiglu(const Exec& exec, View<const float> gate, View<const float> up,
            std::span<const float> weights, float limit, View<float> out) {
  require(gate.same_shape(up) && gate.same_shape(out) &&
              (weights.empty() || int64_t(weights.size()) == gate.rows),
          ErrorCode::kInvalidArgument,
          "swiglu: gate, up and out must have one shape, weights one value a row");
  if (exec.backend == Backend::kCuda) return cuda::swiglu(exec, gate, up, weights, limit, out);
  cpu::swiglu(exec, gate, up, weights, limit, out);
}

}  // namespace onecard::ops
