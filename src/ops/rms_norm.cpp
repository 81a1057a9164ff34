#include "ops/rms_norm.h"

#include "base/error.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/kernels.h"

namespace onecard::ops {

void rms_norm(const Exec& exec, View<const float> x, std::span<const float> w, float eps,
              View<float> out) {
  require(x.same_shape(out) && int64_t(w.size()) == x.cols, ErrorCode::kInvalidArgument,
          "rms_norm: x and out must be [tokens, hidden], w [hidden]");
  if (x.rows == 0) return;
  if (exec.backend == Backend::kCuda) return cuda::rms_norm(exec, x, w, eps, out);
  cpu::rms_norm(exec, x, w, eps, out);
}

}  // namespace onecard::ops
