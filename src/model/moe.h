#pragma once

#include <cstdint>
#include <span>

#include "experts/expert_engine.h"
#include "model/config.h"
#include "model/step_context.h"
#include "model/weight_loader.h"
#include "ops/linear.h"
#include "ops/router.h"
#include "tensor/view.h"

namespace onecard::model {

/// Chooses each token's experts.
class Router {
 public:
  Router(const ModelConfig& config, int64_t layer_idx, WeightLoader& loader);

  /// u: [tokens, hidden]. The result lies in ctx's workspace.
  experts::Routing forward(StepContext& ctx, View<const float> u) const;

 private:
  ops::RouterOptions options_;
  ops::LinearWeight gate_;
  std::span<const float> bias_;
};

/// The expert that every token passes through.
class SharedExpert {
 public:
  SharedExpert(const ModelConfig& config, int64_t layer_idx, WeightLoader& loader);

  /// u, out: [tokens, hidden].
  void forward(StepContext& ctx, View<const float> u, View<float> out) const;

 private:
  int64_t layer_idx_;
  float swiglu_limit_;
  ops::LinearWeight w1_, w3_, w2_;
};

}  // namespace onecard::model
