#include "ops/routed_experts.h"

#include "base/error.h"
#include "ops/cuda/kernels.h"

namespace onecard::ops {

std::vector<std::byte> routed_experts_table(std::span<const exl3::ExpertView> experts,
                                            int& instance) {
  return cuda::routed_experts_table(experts, instance);
}

std::vector<std::byte> plain_experts_table(std::span<const PlainExpert> experts) {
  for (const PlainExpert& expert : experts)
    for (const LinearWeight* w : {&expert.gate, &expert.up, &expert.down})
      require(w->format != LinearWeight::Format::kExl3, ErrorCode::kUnsupported,
              "routed experts: a layer with EXL3 and plain experts does not run on CUDA");
  return cuda::plain_experts_table(experts);
}

void routed_experts_add(const Exec& exec, const RoutedExperts& experts, View<const float> x,
                        View<const int32_t> expert_ids, View<const float> weights,
                        View<float> out) {
  require(exec.backend == Backend::kCuda, ErrorCode::kUnsupported,
          "routed_experts_add: there is no CPU kernel for it");
  require(x.same_shape(out) && x.cols == experts.hidden_size && expert_ids.rows == x.rows &&
              expert_ids.same_shape(weights) && expert_ids.contiguous() && weights.contiguous() &&
              (experts.instance == kPlainExperts ||
               (experts.hidden_size % 128 == 0 && experts.intermediate_size % 128 == 0)) &&
              experts.num_experts >= 1 && experts.num_experts <= kMaxRoutedExperts,
          ErrorCode::kInvalidArgument,
          "routed_experts_add: x and out must be [tokens, hidden], expert_ids and weights [tokens, "
          "experts per token]");
  if (x.rows == 0) return;
  if (experts.instance == kPlainExperts)
    return cuda::plain_experts_add(exec, experts, x, expert_ids, weights, out);
  cuda::routed_experts_add(exec, experts, x, expert_ids, weights, out);
}

int64_t routed_experts_scratch_bytes(const RoutedExperts& experts, int64_t tokens,
                                     int64_t experts_per_token) {
  return cuda::routed_experts_scratch_bytes(experts, tokens, experts_per_token);
}

}  // namespace onecard::ops
