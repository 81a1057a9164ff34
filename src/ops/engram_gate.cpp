#include "ops/engram_gate.h"

#include "base/error.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/kernels.h"

namespace onecard::ops {

void engram_gate_add(const Exec& exec, View<const float> key_val, std::span<const float> qk,
                     float eps, View<float> x) {
  require(key_val.rows == x.rows && key_val.cols > x.cols &&
              x.cols % (key_val.cols - x.cols) == 0 && int64_t(qk.size()) == x.cols,
          ErrorCode::kInvalidArgument,
          "engram_gate_add: key_val must be [tokens, (hc_mult + 1) * hidden], qk and x of hc_mult "
          "* hidden");
  if (x.rows == 0) return;
  if (exec.backend == Backend::kCuda) return cuda::engram_gate_add(exec, key_val, qk, eps, x);
  cpu::engram_gate_add(exec, key_val, qk, eps, x);
}

}  // namespace onecard::ops
