// All routed experts in the memory of one CUDA device.
#pragma once

#include <cstddef>
#include <vector>

#include "experts/expert_engine.h"
#include "experts/expert_weights.h"
#include "ops/routed_experts.h"
#include "tensor/buffer.h"

namespace onecard::experts {

class ResidentExperts final : public ExpertEngine {
 public:
  /// The matrices lie in device memory and stay there. Throws kUnsupported where a layer mixes EXL3
  /// and plain experts, or has more than the kernels take.
  explicit ResidentExperts(const ExpertWeights& weights);

  void forward_add(const Exec& exec, int64_t layer_idx, View<const float> x, const Routing& routing,
                   View<float> out) override;

 private:
  std::vector<Buffer<std::byte>> tables_;  // a layer each, on the device
  std::vector<ops::RoutedExperts> layers_;
};

}  // namespace onecard::experts
