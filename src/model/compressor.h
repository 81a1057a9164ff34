#pragma once

#include <cstdint>
#include <span>

#include "model/config.h"
#include "model/step_context.h"
#include "model/weight_loader.h"
#include "ops/linear.h"
#include "tensor/view.h"

namespace onecard::model {

/// Makes a kv source's global rows: every `ratio` tokens become one latent, which is stored twice,
/// as key and value of attention and as key of the indexer.
class Compressor {
 public:
  Compressor(const ModelConfig& config, int64_t layer_idx, WeightLoader& loader);

  /// Appends the groups that u's tokens complete; an open group waits in the sequence's state.
  /// u: [tokens, hidden].
  void append(StepContext& ctx, View<const float> u) const;
  /// The same in a decode step: u's rows are the next tokens of a sequence each. What is queued
  /// does not depend on which of them complete a group.
  void append_each(StepContext& ctx, View<const float> u) const;

 private:
  void append_block(StepContext& ctx, const Segment& segment, int64_t first_position,
                    View<const float> u) const;
  void append_each_block(StepContext& ctx, int64_t begin, int64_t end, View<const float> u) const;
  /// Packs the groups' index keys into `index_rows`, then rotates the latents.
  void finish_latents(StepContext& ctx, View<float> latents, std::span<const int64_t> positions,
                      const ops::KvRows& index_rows) const;

  int64_t layer_idx_;
  int64_t ratio_;
  float norm_eps_;
  std::span<const float> frequencies_;
  ops::LinearWeight wkv_;
  ops::LinearWeight wgate_;  // ratio 2
  std::span<const float> norm_;
  ops::LinearWeight wk_;
  std::span<const float> k_norm_;
};

}  // namespace onecard::model
