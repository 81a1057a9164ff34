// A model for tests of the step loop: the next token is a hash of everything the slot holds, so
// that a lost, doubled or foreign token changes all that follow.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/model_runner.h"

namespace onecard::test {

class FakeRunner final : public engine::ModelRunner {
 public:
  static constexpr int64_t kVocab = 101;
  static constexpr int kLayers = 5;

  struct Options {
    int num_slots = 4;
    int64_t context_length = 64;
  };

  explicit FakeRunner(Options options) : options_(options), slots_(size_t(options.num_slots)) {}
  FakeRunner() : FakeRunner(Options{}) {}

  /// What the loop did, in order: "p0" a layer of slot 0's prompt, "d13" a step of slots 1 and 3,
  /// "r0" slot 0 released.
  std::vector<std::string> trace;
  /// Called before every layer and step; may throw.
  std::function<void(const std::string& what)> before;

  /// The likeliest token after `history`.
  static int32_t next(const std::vector<int32_t>& history) {
    uint32_t hash = 2166136261;
    for (const int32_t token : history) hash = (hash ^ uint32_t(token)) * 16777619;
    return int32_t(hash % uint32_t(kVocab));
  }

  /// What a greedy sequence has to answer.
  static std::vector<int32_t> greedy(std::vector<int32_t> history, int num_tokens) {
    std::vector<int32_t> answer;
    for (int i = 0; i < num_tokens; ++i) {
      answer.push_back(next(history));
      history.push_back(answer.back());
    }
    return answer;
  }

  int num_slots() const override { return options_.num_slots; }
  int64_t context_length() const override { return options_.context_length; }
  int64_t vocab_size() const override { return kVocab; }

  std::unique_ptr<engine::ChunkPass> start_chunk(int slot, std::span<const int32_t> tokens,
                                                 bool last, View<float> logits) override;
  void decode(std::span<const engine::DecodeRow> rows, View<float> logits) override;
  void release(int slot) override {
    note("r" + std::to_string(slot));
    slots_[size_t(slot)].clear();
  }

  int64_t restore_prefix(int slot, std::span<const int32_t> prompt, std::string_view salt) override;
  void keep_prefix(int slot, std::span<const int32_t> tokens, std::string_view salt) override;
  int64_t num_rows_computed = 0;  // tokens of chunks and steps

  const std::vector<int32_t>& slot(int slot_idx) const { return slots_[size_t(slot_idx)]; }

 private:
  class Pass;

  void note(const std::string& what) {
    trace.push_back(what);
    if (before && what[0] != 'r') before(what);
  }
  static void fill_logits(const std::vector<int32_t>& history, float* logits) {
    for (int64_t i = 0; i < kVocab; ++i) logits[i] = -float((i * 7919 + next(history)) % 13);
    logits[next(history)] = 5;
  }
  std::vector<int32_t>& open_slot(int slot_idx) {
    require(slot_idx >= 0 && slot_idx < options_.num_slots, ErrorCode::kInvalidArgument, "no slot");
    return slots_[size_t(slot_idx)];
  }

  Options options_;
  std::vector<std::vector<int32_t>> slots_;
  std::vector<std::pair<std::string, std::vector<int32_t>>> kept_;  // salt, tokens
};

}  // namespace onecard::test
