// One step of every decoding sequence: all layers, one token each. The engine thread only.
//
// On a device a step of so many rows is queued kernel by kernel the first time, recorded the
// second, and from then on queued as a whole; it is in parts where a layer waits for n-gram rows
// from disk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/exec.h"
#include "device/recording.h"
#include "model/decode_table.h"
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
  // Of the layers [begin, end); the first part begins with the embedding, the last ends with the
  // head.
  struct Part {
    int64_t begin, end;
  };
  void run_part(const Part& part);
  void run_layers(const Part& part);
  void run_recorded(int64_t num_rows);

  const model::Model& model_;
  model::Workspace workspace_;
  model::StepContext ctx_;
  model::DecodeTable table_;
  std::vector<int32_t> tokens_;
  std::vector<Part> parts_;
  View<float> x_, mix_;  // between the parts of a step
  struct Recorded {
    bool has_run = false;
    Exec exec;
    std::vector<Recording> parts;  // as many as have been recorded
  };
  std::vector<Recorded> recorded_;  // by number of rows, of 1 on
};

}  // namespace onecard::engine
