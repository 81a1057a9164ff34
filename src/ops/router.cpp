#include "ops/router.h"

#include "base/error.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/kernels.h"

namespace onecard::ops {

void route(const Exec& exec, View<const float> logits, std::span<const float> bias,
           const RouterOptions& options, View<int32_t> expert_ids, View<float> weights) {
  require(int64_t(bias.size()) == logits.cols && expert_ids.same_shape(weights) &&
              expert_ids.rows == logits.rows && expert_ids.cols >= 1 &&
              expert_ids.cols <= logits.cols,
          ErrorCode::kInvalidArgument,
          "route: logits must be [tokens, experts], expert_ids and weights [tokens, at most "
          "experts]");
  if (exec.backend == Backend::kCuda)
    return cuda::route(exec, logits, bias, options, expert_ids, weights);
  cpu::route(exec, logits, bias, options, expert_ids, weights);
}

}  // namespace onecard::ops
