// The routed experts' weights as the loader finds them.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/linear.h"

namespace onecard::experts {

struct ExpertMatrices {
  ops::LinearWeight gate;  // w1: [intermediate, hidden]
  ops::LinearWeight up;    // w3: [intermediate, hidden]
  ops::LinearWeight down;  // w2: [hidden, intermediate]
};

/// Borrows the matrices' bytes.
struct ExpertWeights {
  int64_t num_layers = 0;
  int64_t experts_per_layer = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  float swiglu_limit = 10;
  std::vector<ExpertMatrices> experts;  // [num_layers * experts_per_layer]

  const ExpertMatrices& at(int64_t layer_idx, int64_t expert_id) const {
    return experts[size_t(layer_idx * experts_per_layer + expert_id)];
  }
};

}  // namespace onecard::experts
