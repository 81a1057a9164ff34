#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "experts/expert_engine.h"
#include "model/attention.h"
#include "model/config.h"
#include "model/engram.h"
#include "model/moe.h"
#include "model/step_context.h"
#include "model/weight_loader.h"
#include "ops/hyper_connection.h"
#include "tensor/view.h"

namespace onecard::model {

/// One layer. Its two sites (attention, experts) each collapse the streams into an input and expand
/// their output back; the weights of a collapse are those that the site before computed.
class Block {
 public:
  Block(const ModelConfig& config, int64_t layer_idx, WeightLoader& loader);

  /// x: [tokens, hc_mult * hidden] streams, in place; mix: [tokens, hc_mult], the carried collapse
  /// weights. Only the last num_out tokens are queries: x, mix and ctx then have num_out rows.
  void forward(StepContext& ctx, experts::ExpertEngine& experts, int64_t num_out, View<float>& x,
               View<float>& mix) const;

  /// The global rows that x's tokens leave behind in a kv source, and nothing else.
  void append_global(StepContext& ctx, View<const float> x, View<const float> mix) const;

 private:
  ops::HcSite load_site(const ModelConfig& config, const std::string& name, WeightLoader& loader);

  int64_t layer_idx_;
  float norm_eps_;
  std::optional<Engram> engram_;
  ops::HcSite hc_attn_, hc_ffn_;
  std::span<const float> attn_norm_, ffn_norm_;
  Attention attention_;
  Router router_;
  SharedExpert shared_expert_;
};

}  // namespace onecard::model
