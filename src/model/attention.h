#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/compressor.h"
#include "model/config.h"
#include "model/indexer.h"
#include "model/step_context.h"
#include "model/weight_loader.h"
#include "ops/linear.h"
#include "tensor/view.h"

namespace onecard::model {

/// Sliding-window attention with compressed global keys: one softmax over the window's rows, the
/// rows of the selected groups, and a sink.
class Attention {
 public:
  Attention(const ModelConfig& config, int64_t layer_idx, WeightLoader& loader);

  /// Makes the tokens' window rows, and at a kv source the global rows. u: [tokens, hidden].
  void append(StepContext& ctx, View<const float> u) const;
  /// The global rows alone; only at a kv source.
  void append_global(StepContext& ctx, View<const float> u) const;
  /// Attends from the rows that ctx still has (the last of those appended), then moves the window
  /// rows into the sequences' rings. u, out: [tokens, hidden].
  void forward(StepContext& ctx, View<const float> u, View<float> out) const;

 private:
  void forward_block(StepContext& ctx, int64_t begin, int64_t end, View<const float> u,
                     View<float> out) const;
  void attend(StepContext& ctx, int64_t begin, int64_t end, View<const float> q,
              View<float> heads) const;
  void store_windows(StepContext& ctx) const;
  ops::KvRows window_rows(StepContext& ctx) const;
  View<const float> angles(const StepContext& ctx) const {
    return ratio_ == 0 ? ctx.angles_main : ctx.angles_compress;
  }

  int64_t layer_idx_;
  int64_t source_;  // whose global rows are read; -1: none
  int64_t ratio_;
  int64_t window_;
  int64_t head_dim_;
  int64_t o_group_dim_;  // columns of one output group's heads
  float norm_eps_;
  ops::LinearWeight wq_a_, wq_b_, wkv_, wo_b_;
  std::vector<ops::LinearWeight> wo_a_;  // an output group each
  std::span<const float> q_norm_, kv_norm_, sinks_;
  std::optional<Compressor> compressor_;
  std::optional<Indexer> indexer_;
};

}  // namespace onecard::model
