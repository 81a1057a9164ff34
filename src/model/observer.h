// Looks at values inside the forward: tests, --dump-layers, and the calibration of the quantizer
// (every input of a linear layer is shown under the name of what it is).
//
// Names, in order, per layer:
//   engram_rows   [tokens, columns * width]   input of engram.wkv
//   attn_in       [tokens, hidden]   input of wq_a, wkv, compressor.*, indexer.weights_proj
//   latent        [groups, head_dim] input of indexer.wk
//   q_latent      [tokens, q_lora_rank]   input of wq_b and indexer.wq_b
//   o_heads       [tokens, heads * head_dim]   input of wo_a, by groups of columns
//   o_latent      [tokens, o_groups * o_lora_rank]   input of wo_b
//   ffn_in        [tokens, hidden]   input of gate, experts' and shared w1 and w3
//   shared_hidden [tokens, intermediate]   input of the shared w2
//   layer_out     [tokens, hc_mult * hidden]   the streams after the layer
//   mix           [tokens, hc_mult]   the carried vector after the layer
//   head_in       [tokens, hidden]   input of the head; its layer is num_hidden_layers
// A name may come several times in a layer, each time with the next rows.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tensor/view.h"

namespace onecard::model {

class Observer {
 public:
  virtual ~Observer() = default;
  /// `values` is valid during the call.
  virtual void observe(int64_t layer_idx, std::string_view name, View<const float> values) = 0;
  /// The groups that the query at `position` attends to, ascending; index source layers.
  virtual void selected(int64_t /*layer_idx*/, int64_t /*position*/,
                        std::span<const int32_t> /*groups*/) {}
  /// [tokens, experts_per_token]: the experts that the router chose.
  virtual void routed(int64_t /*layer_idx*/, View<const int32_t> /*expert_ids*/) {}
};

}  // namespace onecard::model
