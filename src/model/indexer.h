#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/step_context.h"
#include "model/weight_loader.h"
#include "ops/linear.h"
#include "tensor/view.h"

namespace onecard::model {

/// Selects, for each query of an index source layer, the groups that it and the layers that reuse
/// its selection attend to.
class Indexer {
 public:
  Indexer(const ModelConfig& config, int64_t layer_idx, WeightLoader& loader);

  /// Makes room in ctx for the selections of `num_rows` queries.
  void start(StepContext& ctx, int64_t num_rows) const;
  /// Queries [begin, end) of ctx, at most kBlockRows: writes their rows of ctx.selected, and at the
  /// candidate source of ctx.candidates. u: [end - begin, hidden]; q_latent: [end - begin,
  /// q_lora_rank].
  void select(StepContext& ctx, int64_t begin, int64_t end, View<const float> u,
              View<const float> q_latent) const;

 private:
  /// Rows [first, last) of the candidates, where this layer makes or uses them.
  ops::IndexLists candidates_of(const StepContext& ctx, int64_t first, int64_t last) const;
  /// From the scores of rows [first, last) to what they selected.
  void choose(StepContext& ctx, int64_t first, int64_t last, View<const float> scores,
              std::span<const int64_t> num_visible) const;
  void report(const StepContext& ctx, const Segment& segment, int64_t first, int64_t last) const;

  int64_t layer_idx_;
  int64_t source_;  // whose keys are scored
  int64_t ratio_;
  int64_t head_dim_;
  int64_t block_size_;
  bool makes_candidates_;
  bool uses_candidates_;
  ops::LinearWeight wq_b_;
  ops::LinearWeight weights_proj_;
};

}  // namespace onecard::model
