// A model that answers every prompt with one fixed list of tokens and then an end token. Its steps
// can be made to wait, so that a test knows what is running.
#pragma once

#include <algorithm>
#include <latch>
#include <memory>
#include <vector>

#include "engine/model_runner.h"

namespace onecard::test {

class ScriptRunner final : public engine::ModelRunner {
 public:
  ScriptRunner(std::vector<int32_t> answer, int32_t end_token, int64_t vocab_size,
               int64_t context_length, std::shared_ptr<std::latch> starts_after = nullptr,
               int num_slots = 4)
      : answer_(std::move(answer)),
        end_token_(end_token),
        vocab_size_(vocab_size),
        context_length_(context_length),
        starts_after_(std::move(starts_after)),
        positions_(size_t(num_slots)) {}

  int num_slots() const override { return int(positions_.size()); }
  int64_t context_length() const override { return context_length_; }
  int64_t vocab_size() const override { return vocab_size_; }

  std::unique_ptr<engine::ChunkPass> start_chunk(int, std::span<const int32_t>, bool,
                                                 View<float> logits) override {
    struct Pass final : engine::ChunkPass {
      bool run_layer() override { return true; }
    };
    for (int64_t row = 0; row < logits.rows; ++row)
      std::fill(logits.row(row), logits.row(row) + vocab_size_, 0.0f);  // everything is as likely
    return std::make_unique<Pass>();
  }
  void decode(std::span<const engine::DecodeRow> rows, View<float> logits) override {
    if (starts_after_) starts_after_->wait();
    for (size_t i = 0; i < rows.size(); ++i) write(rows[i].slot, logits.row(int64_t(i)));
  }
  void release(int slot) override { positions_[size_t(slot)] = 0; }

 private:
  void write(int slot, float* logits) {
    size_t& position = positions_[size_t(slot)];
    std::fill(logits, logits + vocab_size_, -20.0f);
    logits[position < answer_.size() ? answer_[position] : end_token_] = 20;
    ++position;
  }

  const std::vector<int32_t> answer_;
  const int32_t end_token_;
  const int64_t vocab_size_;
  const int64_t context_length_;
  const std::shared_ptr<std::latch> starts_after_;  // null: steps do not wait
  std::vector<size_t> positions_;
};

}  // namespace onecard::test
