#include "model/compressor.h"

#include <algorithm>
#include <string>

#include "model/decode_table.h"
#include "model/rope_tables.h"
#include "model/workspace.h"
#include "ops/compressor.h"
#include "ops/kv_rows.h"
#include "ops/positions.h"
#include "ops/ring_rows.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace onecard::model {
namespace {

std::byte* bytes_of(View<float> rows, int64_t first) {
  return reinterpret_cast<std::byte*>(rows.row(first));
}

ops::KvRows rows_from(const ops::KvRows& rows, int64_t first) {
  return {rows.row(first), rows.stride_bytes, rows.dim, rows.format};
}

}  // namespace

Compressor::Compressor(const ModelConfig& config, int64_t layer_idx, WeightLoader& loader)
    : layer_idx_(layer_idx),
      ratio_(config.ratio(layer_idx)),
      norm_eps_(float(config.rms_norm_eps)),
      frequencies_(loader.keep(compress_frequencies(config))) {
  const std::string name = "layers." + std::to_string(layer_idx) + ".attn.";
  wkv_ = loader.linear(name + "compressor.wkv", config.head_dim, config.hidden_size);
  if (ratio_ > 1)
    wgate_ = loader.linear(name + "compressor.wgate", config.head_dim, config.hidden_size);
  norm_ = loader.vector(name + "compressor.norm.weight", config.head_dim);
  wk_ = loader.linear(name + "indexer.wk", config.index_head_dim, config.head_dim);
  k_norm_ = loader.vector(name + "indexer.k_norm.weight", config.index_head_dim);
}

void Compressor::append(StepContext& ctx, View<const float> u) const {
  for (const Segment& segment : ctx.segments) {
    for (int64_t begin = 0; begin < segment.num_rows; begin += kBlockRows) {
      const int64_t end = std::min(begin + kBlockRows, segment.num_rows);
      append_block(ctx, segment, segment.first_position + begin,
                   u.rows_between(segment.first_row + begin, segment.first_row + end));
    }
  }
}

void Compressor::append_block(StepContext& ctx, const Segment& segment, int64_t first_position,
                              View<const float> u) const {
  Workspace::Buffers& buffers = ctx.buffers();
  SequenceState& state = *segment.state;
  const int64_t num_open = first_position % ratio_;  // tokens of a group begun earlier
  const int64_t num_tokens = num_open + u.rows;
  const int64_t num_groups = num_tokens / ratio_;
  const int64_t first_group = first_position / ratio_;
  const View<float> keys = buffers.group_keys.rows(num_tokens);
  const View<float> latents = buffers.latents.rows(num_groups);
  if (ratio_ == 1) {
    ops::linear(ctx.exec, u, wkv_, latents);
  } else {
    const View<float> gates = buffers.group_gates.rows(num_tokens);
    ops::linear(ctx.exec, u, wkv_, keys.rows_between(num_open, num_tokens));
    ops::linear(ctx.exec, u, wgate_, gates.rows_between(num_open, num_tokens));
    // The open group's tokens come from the sequence, and all new ones go there.
    const ops::RowRing open_keys = state.open_keys(layer_idx_);
    const ops::RowRing open_gates = state.open_gates(layer_idx_);
    const int64_t first = first_position - num_open;
    ops::load_ring_rows(ctx.exec, open_keys, first, num_open, bytes_of(keys, 0));
    ops::load_ring_rows(ctx.exec, open_gates, first, num_open, bytes_of(gates, 0));
    ops::store_ring_rows(ctx.exec, bytes_of(keys, num_open), first_position, u.rows, open_keys);
    ops::store_ring_rows(ctx.exec, bytes_of(gates, num_open), first_position, u.rows, open_gates);
    ops::pool_groups(ctx.exec, keys.rows_between(0, num_groups * ratio_),
                     gates.rows_between(0, num_groups * ratio_), ratio_, latents);
  }
  if (num_groups == 0) return;
  ops::rms_norm(ctx.exec, latents, norm_, norm_eps_, latents);
  ctx.observe(layer_idx_, "latent", latents);

  const std::span<int64_t> positions = buffers.group_positions.values(num_groups);
  ops::count_up(ctx.exec, first_group * ratio_, ratio_, positions);
  finish_latents(ctx, latents, positions, rows_from(state.index_rows(layer_idx_), first_group));
  ops::pack_kv_rows(ctx.exec, latents, rows_from(state.main_rows(layer_idx_), first_group));
}

// Both rows lie at the position of the group's first token.
void Compressor::finish_latents(StepContext& ctx, View<float> latents,
                                std::span<const int64_t> positions,
                                const ops::KvRows& index_rows) const {
  Workspace::Buffers& buffers = ctx.buffers();
  const View<float> angles = buffers.group_angles.rows(latents.rows);
  ops::rope_angles(ctx.exec, positions, frequencies_, angles);

  const View<float> index_keys = buffers.index_keys.rows(latents.rows);
  ops::linear(ctx.exec, latents, wk_, index_keys);
  ops::rms_norm(ctx.exec, index_keys, k_norm_, norm_eps_, index_keys);
  ops::rope(ctx.exec, index_keys, index_keys.cols, angles);
  ops::pack_kv_rows(ctx.exec, index_keys, index_rows);

  ops::rope(ctx.exec, latents, latents.cols, angles);
}

void Compressor::append_each(StepContext& ctx, View<const float> u) const {
  for (int64_t begin = 0; begin < u.rows; begin += kBlockRows) {
    const int64_t end = std::min(begin + kBlockRows, u.rows);
    append_each_block(ctx, begin, end, u.rows_between(begin, end));
  }
}

void Compressor::append_each_block(StepContext& ctx, int64_t begin, int64_t end,
                                   View<const float> u) const {
  Workspace::Buffers& buffers = ctx.buffers();
  const DecodeTable& table = *ctx.decode_table;
  const View<float> latents = buffers.latents.rows(u.rows);
  if (ratio_ == 1) {
    ops::linear(ctx.exec, u, wkv_, latents);
  } else {
    const View<float> keys = buffers.group_keys.rows(u.rows);
    const View<float> gates = buffers.group_gates.rows(u.rows);
    const ops::LinearCall calls[] = {{u, &wkv_, keys}, {u, &wgate_, gates}};
    ops::linear_each(ctx.exec, calls);
    // Before the new ones take their places, which may be those of the group's first.
    ops::pool_open_groups(ctx.exec, keys, gates, table.open_groups(layer_idx_, begin, end), ratio_,
                          latents);
    const int64_t row_bytes = keys.cols * int64_t(sizeof(float));
    ops::scatter_rows(ctx.exec, bytes_of(keys, 0), row_bytes,
                      table.key_slots(layer_idx_, begin, end));
    ops::scatter_rows(ctx.exec, bytes_of(gates, 0), row_bytes,
                      table.gate_slots(layer_idx_, begin, end));
  }
  ops::rms_norm(ctx.exec, latents, norm_, norm_eps_, latents);
  for (int64_t row = begin; row < end; ++row)
    if ((ctx.segments[size_t(row)].first_position + 1) % ratio_ == 0)
      ctx.observe(layer_idx_, "latent", latents.rows_between(row - begin, row - begin + 1));

  SequenceState& any = *ctx.segments[0].state;  // for the formats
  ops::KvRows packed = any.index_rows(layer_idx_);
  packed.data = buffers.packed_rows.data();
  finish_latents(ctx, latents, table.group_positions(layer_idx_, begin, end), packed);
  ops::scatter_rows(ctx.exec, packed.data, packed.stride_bytes,
                    table.index_slots(layer_idx_, begin, end));
  packed = any.main_rows(layer_idx_);
  packed.data = buffers.packed_rows.data();
  ops::pack_kv_rows(ctx.exec, latents, packed);
  ops::scatter_rows(ctx.exec, packed.data, packed.stride_bytes,
                    table.main_slots(layer_idx_, begin, end));
}

}  // namespace onecard::model
