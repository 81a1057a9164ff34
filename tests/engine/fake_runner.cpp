#include "engine/fake_runner.h"

#include <algorithm>

namespace onecard::test {

class FakeRunner::Pass final : public engine::ChunkPass {
 public:
  Pass(FakeRunner& runner, int slot, std::span<const int32_t> tokens, View<float> logits)
      : runner_(runner), slot_(slot), tokens_(tokens.begin(), tokens.end()), logits_(logits) {}

  bool run_layer() override {
    runner_.note("p" + std::to_string(slot_));
    if (++layer_ < kLayers) return false;
    std::vector<int32_t>& history = runner_.open_slot(slot_);
    for (size_t i = 0; i < tokens_.size(); ++i) {
      history.push_back(tokens_[i]);
      if (logits_.rows > 0) fill_logits(history, logits_.row(int64_t(i)));
    }
    runner_.num_rows_computed += int64_t(tokens_.size());
    return true;
  }

 private:
  FakeRunner& runner_;
  const int slot_;
  const std::vector<int32_t> tokens_;
  const View<float> logits_;
  int layer_ = 0;
};

std::unique_ptr<engine::ChunkPass> FakeRunner::start_chunk(int slot,
                                                           std::span<const int32_t> tokens, bool,
                                                           View<float> logits) {
  return std::make_unique<Pass>(*this, slot, tokens, logits);
}

int64_t FakeRunner::restore_prefix(int slot, std::span<const int32_t> prompt,
                                   std::string_view salt) {
  std::vector<int32_t>& history = open_slot(slot);
  require(history.empty(), ErrorCode::kInvalidArgument, "the slot is not empty");
  for (const auto& [kept_salt, tokens] : kept_)
    if (kept_salt == salt && tokens.size() < prompt.size() && tokens.size() > history.size() &&
        std::equal(tokens.begin(), tokens.end(), prompt.begin()))
      history = tokens;
  return int64_t(history.size());
}

void FakeRunner::keep_prefix(int slot, std::span<const int32_t> tokens, std::string_view salt) {
  const std::vector<int32_t> wanted(tokens.begin(), tokens.end());
  require(open_slot(slot) == wanted, ErrorCode::kInvalidArgument, "the slot holds something else");
  kept_.emplace_back(salt, wanted);
}

void FakeRunner::decode(std::span<const engine::DecodeRow> rows, View<float> logits) {
  std::string what = "d";
  for (const engine::DecodeRow& row : rows) what += std::to_string(row.slot);
  note(what);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<int32_t>& history = open_slot(rows[i].slot);
    history.push_back(rows[i].token);
    ++num_rows_computed;
    fill_logits(history, logits.row(int64_t(i)));
  }
}

}  // namespace onecard::test
