#include "model/attention.h"

#include <algorithm>
#include <string>

#include "model/decode_table.h"
#include "model/workspace.h"
#include "ops/attention.h"
#include "ops/kv_rows.h"
#include "ops/ring_rows.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace onecard::model {

Attention::Attention(const ModelConfig& config, int64_t layer_idx, WeightLoader& loader)
    : layer_idx_(layer_idx),
      source_(config.source(layer_idx)),
      ratio_(config.ratio(layer_idx)),
      window_(config.sliding_window),
      head_dim_(config.head_dim),
      o_group_dim_(config.num_attention_heads * config.head_dim / config.o_groups),
      norm_eps_(float(config.rms_norm_eps)) {
  const std::string name = "layers." + std::to_string(layer_idx) + ".attn.";
  const int64_t all_heads = config.num_attention_heads * head_dim_;
  wq_a_ = loader.linear(name + "wq_a", config.q_lora_rank, config.hidden_size);
  wq_b_ = loader.linear(name + "wq_b", all_heads, config.q_lora_rank);
  wkv_ = loader.linear(name + "wkv", head_dim_, config.hidden_size);
  wo_a_ = loader.grouped_linear(name + "wo_a", config.o_groups, config.o_lora_rank, o_group_dim_);
  wo_b_ = loader.linear(name + "wo_b", config.hidden_size, config.o_groups * config.o_lora_rank);
  q_norm_ = loader.vector(name + "q_norm.weight", config.q_lora_rank);
  kv_norm_ = loader.vector(name + "kv_norm.weight", head_dim_);
  sinks_ = loader.vector(name + "attn_sink", config.num_attention_heads);
  if (config.is_kv_source(layer_idx)) compressor_.emplace(config, layer_idx, loader);
  if (config.is_index_source(layer_idx)) indexer_.emplace(config, layer_idx, loader);
}

ops::KvRows Attention::window_rows(StepContext& ctx) const {
  ops::KvRows rows = ctx.segments[0].state->window_ring(layer_idx_);  // for its format
  rows.data = ctx.buffers().window_rows.data();
  return rows;
}

void Attention::append(StepContext& ctx, View<const float> u) const {
  const ops::KvRows rows = window_rows(ctx);
  for (int64_t begin = 0; begin < u.rows; begin += kBlockRows) {
    const int64_t end = std::min(begin + kBlockRows, u.rows);
    const View<float> kv = ctx.buffers().kv.rows(end - begin);
    ops::linear(ctx.exec, u.rows_between(begin, end), wkv_, kv);
    ops::rms_norm(ctx.exec, kv, kv_norm_, norm_eps_, kv);
    ops::rope(ctx.exec, kv, head_dim_, angles(ctx).rows_between(begin, end));
    ops::pack_kv_rows(ctx.exec, kv, {rows.row(begin), rows.stride_bytes, rows.dim, rows.format});
  }
  if (ctx.decode_table != nullptr) {
    // In the ring the newest row takes the place of one that no query sees any more.
    ops::scatter_rows(ctx.exec, rows.data, rows.stride_bytes,
                      ctx.decode_table->window_slots(layer_idx_, 0, u.rows));
    if (compressor_) compressor_->append_each(ctx, u);
    return;
  }
  for (Segment& segment : ctx.segments) {
    segment.first_window_row = segment.first_row;
    segment.first_window_position = segment.first_position;
    segment.num_window_rows = segment.num_rows;
  }
  if (compressor_ && !ctx.global_rows_done) compressor_->append(ctx, u);
}

void Attention::append_global(StepContext& ctx, View<const float> u) const {
  compressor_->append(ctx, u);
}

void Attention::forward(StepContext& ctx, View<const float> u, View<float> out) const {
  if (indexer_) indexer_->start(ctx, u.rows);
  for (int64_t begin = 0; begin < u.rows; begin += kBlockRows) {
    const int64_t end = std::min(begin + kBlockRows, u.rows);
    forward_block(ctx, begin, end, u.rows_between(begin, end), out.rows_between(begin, end));
  }
  store_windows(ctx);
}

void Attention::forward_block(StepContext& ctx, int64_t begin, int64_t end, View<const float> u,
                              View<float> out) const {
  Workspace::Buffers& buffers = ctx.buffers();
  const View<float> q_latent = buffers.q_latent.rows(u.rows);
  ops::linear(ctx.exec, u, wq_a_, q_latent);
  ops::rms_norm(ctx.exec, q_latent, q_norm_, norm_eps_, q_latent);
  ctx.observe(layer_idx_, "q_latent", q_latent);
  if (indexer_) indexer_->select(ctx, begin, end, u, q_latent);

  const View<float> q = buffers.q.rows(u.rows);
  ops::linear(ctx.exec, q_latent, wq_b_, q);
  ops::rope(ctx.exec, q, head_dim_, angles(ctx).rows_between(begin, end));

  const View<float> heads = buffers.heads.rows(u.rows);
  attend(ctx, begin, end, q, heads);
  ops::rope(ctx.exec, heads, head_dim_, angles(ctx).rows_between(begin, end), true);
  ctx.observe(layer_idx_, "o_heads", heads);

  const View<float> o_latent = buffers.o_latent.rows(u.rows);
  const int64_t rank = o_latent.cols / int64_t(wo_a_.size());
  std::vector<ops::LinearCall>& calls = buffers.output_groups;
  calls.clear();
  for (int64_t g = 0; g < int64_t(wo_a_.size()); ++g)
    calls.push_back({heads.cols_between(g * o_group_dim_, (g + 1) * o_group_dim_),
                     &wo_a_[size_t(g)], o_latent.cols_between(g * rank, (g + 1) * rank)});
  ops::linear_each(ctx.exec, calls);
  ctx.observe(layer_idx_, "o_latent", o_latent);
  ops::linear(ctx.exec, o_latent, wo_b_, out);
}

void Attention::attend(StepContext& ctx, int64_t begin, int64_t end, View<const float> q,
                       View<float> heads) const {
  if (ctx.decode_table != nullptr) {
    const DecodeTable& table = *ctx.decode_table;
    SequenceState& any = *ctx.segments[0].state;  // for the formats
    ops::EachKeys keys;
    keys.positions = table.positions(begin, end);
    keys.rings = table.window_rings(layer_idx_, begin, end);
    keys.ring = ops::as_const(any.window_ring(layer_idx_));
    keys.num_ring_rows = any.num_ring_rows();
    keys.window = window_;
    ops::IndexLists selected;
    if (source_ >= 0) {
      keys.globals = table.main_rows(source_, begin, end);
      keys.global = ops::as_const(any.main_rows(source_));
      selected = ctx.selected.rows_between(begin, end);
    }
    return ops::attention_each(ctx.exec, q, keys, source_ >= 0 ? &selected : nullptr, sinks_,
                               heads);
  }
  const ops::ConstKvRows chunk = ops::as_const(window_rows(ctx));
  for (const Segment& segment : ctx.segments) {
    const int64_t first = std::max(begin, segment.first_row);
    const int64_t last = std::min(end, segment.first_row + segment.num_rows);
    if (first >= last) continue;
    ops::AttentionKeys keys;
    keys.ring = ops::as_const(segment.state->window_ring(layer_idx_));
    keys.num_ring_rows = segment.state->num_ring_rows();
    keys.chunk = {chunk.row(segment.first_window_row), chunk.stride_bytes, chunk.dim, chunk.format};
    keys.chunk_begin = segment.first_window_position;
    keys.window = window_;
    keys.window_begin = segment.window_begin;
    ops::IndexLists selected;
    if (source_ >= 0) {
      keys.global = ops::as_const(segment.state->main_rows(source_));
      selected = ctx.selected.rows_between(first, last);
    }
    ops::attention(ctx.exec, q.rows_between(first - begin, last - begin),
                   segment.first_position + (first - segment.first_row), keys,
                   source_ >= 0 ? &selected : nullptr, sinks_,
                   heads.rows_between(first - begin, last - begin));
  }
}

void Attention::store_windows(StepContext& ctx) const {
  if (ctx.decode_table != nullptr) return;
  const ops::KvRows rows = window_rows(ctx);
  for (const Segment& segment : ctx.segments) {
    const ops::KvRows ring = segment.state->window_ring(layer_idx_);
    ops::store_ring_rows(ctx.exec, rows.row(segment.first_window_row),
                         segment.first_window_position, segment.num_window_rows,
                         {ring.data, segment.state->num_ring_rows(), ring.stride_bytes});
  }
}

}  // namespace onecard::model
