#include "model/moe.h"

#include <algorithm>
#include <string>

#include "model/workspace.h"
#include "ops/swiglu.h"

namespace onecard::model {

Router::Router(const ModelConfig& config, int64_t layer_idx, WeightLoader& loader)
    : options_{config.norm_topk_prob, float(config.routed_scaling_factor),
               float(config.gate_temp)} {
  const std::string name = "layers." + std::to_string(layer_idx) + ".ffn.gate";
  gate_ = loader.linear(name, config.n_routed_experts, config.hidden_size);
  bias_ = loader.vector(name + ".bias", config.n_routed_experts);
}

experts::Routing Router::forward(StepContext& ctx, View<const float> u) const {
  Workspace::Buffers& buffers = ctx.buffers();
  const View<float> logits = buffers.router_logits.rows(u.rows);
  const View<int32_t> expert_ids = buffers.expert_ids.rows(u.rows);
  const View<float> weights = buffers.router_weights.rows(u.rows);
  ops::linear(ctx.exec, u, gate_, logits);
  ops::route(ctx.exec, logits, bias_, options_, expert_ids, weights);
  return {expert_ids, weights};
}

SharedExpert::SharedExpert(const ModelConfig& config, int64_t layer_idx, WeightLoader& loader)
    : layer_idx_(layer_idx), swiglu_limit_(float(config.swiglu_limit)) {
  const std::string name = "layers." + std::to_string(layer_idx) + ".ffn.shared_experts.";
  const int64_t intermediate = config.moe_intermediate_size * config.n_shared_experts;
  w1_ = loader.linear(name + "w1", intermediate, config.hidden_size);
  w3_ = loader.linear(name + "w3", intermediate, config.hidden_size);
  w2_ = loader.linear(name + "w2", config.hidden_size, intermediate);
}

void SharedExpert::forward(StepContext& ctx, View<const float> u, View<float> out) const {
  Workspace::Buffers& buffers = ctx.buffers();
  for (int64_t begin = 0; begin < u.rows; begin += kBlockRows) {
    const int64_t end = std::min(begin + kBlockRows, u.rows);
    const View<float> gate = buffers.shared_gate.rows(end - begin);
    const View<float> up = buffers.shared_up.rows(end - begin);
    const ops::LinearCall calls[] = {{u.rows_between(begin, end), &w1_, gate},
                                     {u.rows_between(begin, end), &w3_, up}};
    ops::linear_each(ctx.exec, calls);
    ops::swiglu(ctx.exec, gate, up, {}, swiglu_limit_, gate);
    ctx.observe(layer_idx_, "shared_hidden", gate);
    ops::linear(ctx.exec, gate, w2_, out.rows_between(begin, end));
  }
}

}  // namespace onecard::model
