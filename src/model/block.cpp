#include "model/block.h"

#include <string>

#include "model/workspace.h"

namespace onecard::model {

Block::Block(const ModelConfig& config, int64_t layer_idx, WeightLoader& loader)
    : layer_idx_(layer_idx),
      norm_eps_(float(config.rms_norm_eps)),
      attention_(config, layer_idx, loader),
      router_(config, layer_idx, loader),
      shared_expert_(config, layer_idx, loader) {
  const std::string name = "layers." + std::to_string(layer_idx) + ".";
  if (config.engram_idx(layer_idx) >= 0) engram_.emplace(config, layer_idx, loader);
  hc_attn_ = load_site(config, name + "hc_attn_", loader);
  hc_ffn_ = load_site(config, name + "hc_ffn_", loader);
  attn_norm_ = loader.vector(name + "attn_norm.weight", config.hidden_size);
  ffn_norm_ = loader.vector(name + "ffn_norm.weight", config.hidden_size);
}

ops::HcSite Block::load_site(const ModelConfig& config, const std::string& name,
                             WeightLoader& loader) {
  ops::HcSite site;
  site.fn = loader.matrix(name + "fn", config.hc_mix_size(), config.hc_mult * config.hidden_size);
  site.base = loader.vector(name + "base", config.hc_mix_size());
  site.scale = loader.vector(name + "scale", 3);
  site.sinkhorn_iters = config.hc_sinkhorn_iters;
  site.hc_eps = float(config.hc_eps);
  site.norm_eps = norm_eps_;
  return site;
}

void Block::forward(StepContext& ctx, experts::ExpertEngine& experts, int64_t num_out,
                    View<float>& x, View<float>& mix) const {
  Workspace::Buffers& buffers = ctx.buffers();
  const int64_t num_in = x.rows;
  if (engram_) engram_->forward_add(ctx, x);

  View<float> u = buffers.hidden.rows(num_in);
  ops::hc_collapse_norm(ctx.exec, x, mix, attn_norm_, norm_eps_, u);
  ctx.observe(layer_idx_, "attn_in", u);
  attention_.append(ctx, u);

  // From here on there are only the queries.
  ctx.keep_last(num_out);
  x = x.rows_between(num_in - num_out, num_in);
  u = u.rows_between(num_in - num_out, num_in);
  const ops::HcCoefficients attn_hc{buffers.attn_pre.rows(num_out), buffers.attn_post.rows(num_out),
                                    buffers.attn_comb.rows(num_out)};
  ops::hc_coefficients(ctx.exec, x, hc_attn_, attn_hc);
  const View<float> y = buffers.branch.rows(num_out);
  attention_.forward(ctx, u, y);
  ops::hc_expand(ctx.exec, y, attn_hc.post, attn_hc.comb, x);

  const ops::HcCoefficients ffn_hc{buffers.ffn_pre.rows(num_out), buffers.ffn_post.rows(num_out),
                                   buffers.ffn_comb.rows(num_out)};
  ops::hc_coefficients(ctx.exec, x, hc_ffn_, ffn_hc);
  const View<float> v = buffers.hidden.rows(num_out);
  ops::hc_collapse_norm(ctx.exec, x, attn_hc.pre, ffn_norm_, norm_eps_, v);
  ctx.observe(layer_idx_, "ffn_in", v);
  const experts::Routing routing = router_.forward(ctx, v);
  ctx.observe_routed(layer_idx_, routing.expert_ids);
  const View<float> ffn = buffers.branch.rows(num_out);
  shared_expert_.forward(ctx, v, ffn);
  experts.forward_add(ctx.exec, layer_idx_, v, routing, ffn);
  ops::hc_expand(ctx.exec, ffn, ffn_hc.post, ffn_hc.comb, x);

  mix = ffn_hc.pre;  // used by the next block's first collapse
  ctx.observe(layer_idx_, "layer_out", x);
  ctx.observe(layer_idx_, "mix", mix);
}

void Block::append_global(StepContext& ctx, View<const float> x, View<const float> mix) const {
  const View<float> u = ctx.buffers().hidden.rows(x.rows);
  ops::hc_collapse_norm(ctx.exec, x, mix, attn_norm_, norm_eps_, u);
  ctx.observe(layer_idx_, "attn_in", u);
  attention_.append_global(ctx, u);
}

}  // namespace onecard::model
