#include "model/indexer.h"

#include <algorithm>
#include <string>

#include "model/decode_table.h"
#include "model/workspace.h"
#include "ops/indexer.h"
#include "ops/kv_rows.h"
#include "ops/positions.h"
#include "ops/rope.h"

namespace onecard::model {

Indexer::Indexer(const ModelConfig& config, int64_t layer_idx, WeightLoader& loader)
    : layer_idx_(layer_idx),
      source_(config.source(layer_idx)),
      ratio_(config.ratio(layer_idx)),
      head_dim_(config.index_head_dim),
      block_size_(config.candidate_block_size),
      makes_candidates_(config.is_candidate_source(layer_idx)),
      uses_candidates_(config.uses_candidates(layer_idx)) {
  const std::string name = "layers." + std::to_string(layer_idx) + ".attn.indexer.";
  wq_b_ = loader.linear(name + "wq_b", config.index_n_heads * head_dim_, config.q_lora_rank);
  weights_proj_ = loader.linear(name + "weights_proj", config.index_n_heads, config.hidden_size);
}

void Indexer::start(StepContext& ctx, int64_t num_rows) const {
  Workspace::Buffers& buffers = ctx.buffers();
  ctx.selected = {buffers.selected.rows(num_rows), buffers.selected_counts.values(num_rows)};
  if (makes_candidates_)
    ctx.candidates = {buffers.candidates.rows(num_rows), buffers.candidate_counts.values(num_rows)};
}

void Indexer::select(StepContext& ctx, int64_t begin, int64_t end, View<const float> u,
                     View<const float> q_latent) const {
  Workspace::Buffers& buffers = ctx.buffers();
  const View<float> q = buffers.index_q.rows(end - begin);
  ops::linear(ctx.exec, q_latent, wq_b_, q);
  ops::rope(ctx.exec, q, head_dim_, ctx.angles_compress.rows_between(begin, end));
  ops::fake_quantise(ctx.exec, ops::kv_format_for(ops::KvFormat::kFp4Block32, head_dim_), head_dim_,
                     q);
  const View<float> weights = buffers.index_weights.rows(end - begin);
  ops::linear(ctx.exec, u, weights_proj_, weights);

  if (ctx.decode_table == nullptr) {
    for (const Segment& segment : ctx.segments) {
      const int64_t first = std::max(begin, segment.first_row);
      const int64_t last = std::min(end, segment.first_row + segment.num_rows);
      if (first >= last) continue;
      const std::span<int64_t> num_visible = buffers.num_visible.values(last - first);
      ops::visible_groups(ctx.exec, segment.first_position + (first - segment.first_row), ratio_,
                          num_visible);
      const View<float> scores = buffers.index_scores.rows(last - first);
      const ops::IndexLists candidates = candidates_of(ctx, first, last);
      ops::indexer_scores(ctx.exec, q.rows_between(first - begin, last - begin),
                          weights.rows_between(first - begin, last - begin),
                          ops::as_const(segment.state->index_rows(source_)), num_visible,
                          uses_candidates_ ? &candidates : nullptr, block_size_, scores);
      choose(ctx, first, last, scores, num_visible);
    }
  } else {
    const DecodeTable& table = *ctx.decode_table;
    const std::span<const int64_t> num_visible = table.num_visible(source_, begin, end);
    const View<float> scores = buffers.index_scores.rows(end - begin);
    const ops::IndexLists candidates = candidates_of(ctx, begin, end);
    ops::indexer_scores_each(ctx.exec, q, weights,
                             ops::as_const(ctx.segments[0].state->index_rows(source_)),
                             table.index_rows(source_, begin, end), num_visible,
                             uses_candidates_ ? &candidates : nullptr, block_size_, scores);
    choose(ctx, begin, end, scores, num_visible);
  }
  if (ctx.observer == nullptr) return;
  for (const Segment& segment : ctx.segments) {
    const int64_t first = std::max(begin, segment.first_row);
    const int64_t last = std::min(end, segment.first_row + segment.num_rows);
    if (first < last) report(ctx, segment, first, last);
  }
}

ops::IndexLists Indexer::candidates_of(const StepContext& ctx, int64_t first, int64_t last) const {
  if (!makes_candidates_ && !uses_candidates_) return {};
  return ctx.candidates.rows_between(first, last);
}

void Indexer::choose(StepContext& ctx, int64_t first, int64_t last, View<const float> scores,
                     std::span<const int64_t> num_visible) const {
  ops::select_top_k(ctx.exec, scores, num_visible, ctx.selected.rows_between(first, last));
  if (makes_candidates_)
    ops::select_candidate_blocks(ctx.exec, scores, num_visible, block_size_,
                                 ctx.buffers().block_scores.rows(last - first),
                                 candidates_of(ctx, first, last));
}

void Indexer::report(const StepContext& ctx, const Segment& segment, int64_t first,
                     int64_t last) const {
  const ops::IndexLists lists = ctx.selected.rows_between(first, last);
  Buffer<int32_t> ids(lists.ids.rows * lists.ids.cols), counts(lists.ids.rows);
  queue_copy(ctx.exec, ids.data(), lists.ids.data, size_t(ids.size()) * sizeof(int32_t));
  queue_copy(ctx.exec, counts.data(), lists.counts.data(), lists.counts.size_bytes());
  synchronise(ctx.exec);
  for (int64_t t = first; t < last; ++t)
    ctx.observer->selected(layer_idx_, segment.first_position + (t - segment.first_row),
                           {ids.data() + (t - first) * lists.ids.cols, size_t(counts[t - first])});
}

}  // namespace onecard::model
