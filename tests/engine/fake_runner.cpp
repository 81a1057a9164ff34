#include "engine/fake_runner.h"

namespace onecard::test {

class FakeRunner::Pass final : public engine::ChunkPass {
 public:
  Pass(FakeRunner& runner, int slot, std::span<const int32_t> tokens, bool last,
       std::span<float> logits)
      : runner_(runner),
        slot_(slot),
        tokens_(tokens.begin(), tokens.end()),
        last_(last),
        logits_(logits) {}

  bool run_layer() override {
    runner_.note("p" + std::to_string(slot_));
    if (++layer_ < kLayers) return false;
    std::vector<int32_t>& history = runner_.open_slot(slot_);
    history.insert(history.end(), tokens_.begin(), tokens_.end());
    if (last_) fill_logits(history, logits_.data());
    return true;
  }

 private:
  FakeRunner& runner_;
  const int slot_;
  const std::vector<int32_t> tokens_;
  const bool last_;
  const std::span<float> logits_;
  int layer_ = 0;
};

std::unique_ptr<engine::ChunkPass> FakeRunner::start_chunk(int slot,
                                                           std::span<const int32_t> tokens,
                                                           bool last, std::span<float> logits) {
  return std::make_unique<Pass>(*this, slot, tokens, last, logits);
}

void FakeRunner::decode(std::span<const engine::DecodeRow> rows, View<float> logits) {
  std::string what = "d";
  for (const engine::DecodeRow& row : rows) what += std::to_string(row.slot);
  note(what);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<int32_t>& history = open_slot(rows[i].slot);
    history.push_back(rows[i].token);
    fill_logits(history, logits.row(int64_t(i)));
  }
}

}  // namespace onecard::test
