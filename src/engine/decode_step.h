// One step of every decoding sequence: all layers, one token each. The engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/exec.h"
#include "model/model.h"
#include "model/sequence_state.h"
#include "model/step_context.h"
#include "tensor/view.h"

namespace onecard::engine {

class DecodeStep {
 public:
  struct Row {
    model::SequenceState* sequence = nullptr;
    int32_t token = 0;  // appended
  };

  /// A workspace of `max_rows` rows for sequences of at most `capacity_tokens`.
  DecodeStep(const model::Model& model, int64_t max_rows, int64_t capacity_tokens);

  /// logits: [rows.size(), vocab_size]. Sequences must be distinct; lengths may differ. A row's
  /// logits do not depend on the other rows. Throws kInvalidArgument before anything changed;
  /// another error leaves the sequences unusable until clear().
  void run(const Exec& exec, std::span<const Row> rows, View<float> logits,
           model::Observer* observer = nullptr);

  int64_t max_rows() const { return workspace_.max_rows(); }

 private:
  const model::Model& model_;
  model::Workspace workspace_;
  model::StepContext ctx_;
  std::vector<int32_t> tokens_;
};

}  // namespace onecard::engine
