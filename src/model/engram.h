#pragma once

#include <cstdint>
#include <span>

#include "model/config.h"
#include "model/step_context.h"
#include "model/weight_loader.h"
#include "ops/linear.h"
#include "tensor/view.h"

namespace onecard::model {

/// The n-gram memory of one layer: rows looked up by hash, projected, and added to every stream as
/// far as they agree with it.
class Engram {
 public:
  Engram(const ModelConfig& config, int64_t layer_idx, WeightLoader& loader);

  /// x: [tokens, hc_mult * hidden], in place. Waits for the rows that Model::begin() asked for.
  void forward_add(StepContext& ctx, View<float> x) const;

 private:
  int64_t layer_idx_;
  int64_t engram_idx_;
  float norm_eps_;
  ops::LinearWeight wkv_;
  std::span<const float> qk_;  // [hc_mult * hidden]: product of the learned query and key weights
};

}  // namespace onecard::model
