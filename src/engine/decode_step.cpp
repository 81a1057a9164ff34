#include "engine/decode_step.h"

#include <algorithm>

#include "base/error.h"

namespace onecard::engine {

DecodeStep::DecodeStep(const model::Model& model, int64_t max_rows, int64_t capacity_tokens)
    : model_(model),
      workspace_(model.config(), max_rows, capacity_tokens, model.backend()),
      table_(model.config(), max_rows, model.backend()) {
  ctx_.segments.reserve(size_t(max_rows));
  tokens_.reserve(size_t(max_rows));
  int64_t begin = 0;
  for (const int64_t layer_idx : model.config().engram_layer_ids) {
    if (layer_idx > begin) parts_.push_back({begin, layer_idx});
    begin = layer_idx;
  }
  parts_.push_back({begin, model.num_layers()});
  if (model.backend() == Backend::kCuda)
    recorded_.resize(size_t(std::min(max_rows, model::Model::kMostHeadRows)));
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
  ctx_.decode_table = &table_;
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
  model_.stage(ctx_, tokens_);
  table_.fill(ctx_.segments);
  x_ = workspace_.streams(num_rows);
  mix_ = workspace_.mix(num_rows);
  if (size_t(num_rows) <= recorded_.size() && observer == nullptr) {
    run_recorded(num_rows);
    model_.fetch_logits(ctx_, logits);
  } else {
    for (const Part& part : parts_) run_layers(part);
    model_.logits(ctx_, x_, mix_, logits);
  }
  for (const Row& row : rows) row.sequence->commit(1, true, true);
}

void DecodeStep::run_layers(const Part& part) {
  if (part.begin == 0) {
    table_.queue(ctx_.exec);
    model_.start(ctx_, x_, mix_);
  }
  for (int64_t layer_idx = part.begin; layer_idx < part.end; ++layer_idx)
    model_.run_layer(ctx_, layer_idx, x_.rows, x_, mix_);
}

void DecodeStep::run_part(const Part& part) {
  run_layers(part);
  if (part.end == model_.num_layers()) model_.head(ctx_, x_, mix_);
}

void DecodeStep::run_recorded(int64_t num_rows) {
  Recorded& recorded = recorded_[size_t(num_rows - 1)];
  if (recorded.exec.stream != ctx_.exec.stream) recorded = {};
  // A step that failed halfway: what its parts hand to each other is not known here any more.
  if (recorded.parts.size() != parts_.size()) recorded.parts.clear();
  for (size_t i = 0; i < parts_.size(); ++i) {
    model_.await_engram_rows(ctx_, parts_[i].begin);
    if (!recorded.has_run) {
      run_part(parts_[i]);
      continue;
    }
    if (recorded.parts.size() == i)
      recorded.parts.push_back(Recording::make(ctx_.exec, [&] { run_part(parts_[i]); }));
    recorded.parts[i].launch(ctx_.exec);
  }
  recorded.has_run = true;
  recorded.exec = ctx_.exec;
}

}  // namespace onecard::engine
