#include "engine/decode_step.h"

#include <algorithm>

#include "base/error.h"

namespace onecard::engine {

DecodeStep::DecodeStep(const model::Model& model, int64_t max_rows, int64_t capacity_tokens)
    : model_(model), workspace_(model.config(), max_rows, capacity_tokens, model.backend()) {
  ctx_.segments.reserve(size_t(max_rows));
  tokens_.reserve(size_t(max_rows));
}

void DecodeStep::run(const Exec& exec, std::span<const Row> rows, View<float> logits,
                     model::Observer* observer) {
  const auto num_rows = int64_t(rows.size());
  require(num_rows >= 1 && num_rows <= max_rows() && logits.rows == num_rows &&
              logits.cols == model_.vocab_size(),
          ErrorCode::kInvalidArgument,
          "decode step: between 1 and max_rows rows, logits [rows, vocab_size]");
  ctx_.exec = exec;
  ctx_.workspace = &workspace_;
  ctx_.observer = observer;
  ctx_.segments.clear();
  tokens_.clear();
  for (const Row& row : rows) {
    for (const model::Segment& other : ctx_.segments)
      require(other.state != row.sequence, ErrorCode::kInvalidArgument,
              "decode step: a sequence comes twice");
    require(row.sequence->has_decoder_windows(), ErrorCode::kInvalidArgument,
            "decode step: a sequence is inside its prompt");
    ctx_.segments.push_back({.state = row.sequence,
                             .first_row = int64_t(tokens_.size()),
                             .num_rows = 1,
                             .first_position = row.sequence->num_tokens()});
    tokens_.push_back(row.token);
  }
  View<float> x = workspace_.streams(num_rows);
  View<float> mix = workspace_.mix(num_rows);
  model_.begin(ctx_, tokens_, x, mix);
  for (int64_t layer_idx = 0; layer_idx < model_.num_layers(); ++layer_idx)
    model_.run_layer(ctx_, layer_idx, num_rows, x, mix);
  model_.logits(ctx_, x, mix, logits);
  for (const Row& row : rows) row.sequence->commit(1, true, true);
}

}  // namespace onecard::engine
