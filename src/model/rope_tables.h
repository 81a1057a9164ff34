// The model's two tables of rotation frequencies.
#pragma once

#include <vector>

#include "model/config.h"
#include "ops/rope.h"

namespace onecard::model {

/// Layers without global keys.
inline std::vector<float> window_frequencies(const ModelConfig& config) {
  return ops::rope_frequencies(config.rope_theta, config.qk_rope_head_dim);
}

/// All others, and everything in them.
inline std::vector<float> compress_frequencies(const ModelConfig& config) {
  const ops::YarnScaling yarn{config.rope_scaling.factor, config.rope_scaling.beta_fast,
                              config.rope_scaling.beta_slow,
                              config.rope_scaling.original_max_position_embeddings};
  return ops::rope_frequencies(config.compress_rope_theta, config.qk_rope_head_dim, &yarn);
}

}  // namespace onecard::model
