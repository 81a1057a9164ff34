// One chunk of a sequence's prompt on its way through the layers. Resumable: run_layer() advances
// by one layer, so that decode steps of other sequences can run in between (with a workspace of
// their own). The engine thread only.
//
// Modes (W: sliding window):
//   kFull     every layer on every token.
//   kExact    the same logits for the last token and all later ones, but decoder layers run only
//             on the tokens that these depend on, once, behind the last chunk.
//   kBounded  decoder layers run on the last W tokens only, their windows cut off at the first of
//             these: the approximation that the model's makers serve with.
// A prompt in several chunks gives the same logits as in one, wherever the boundaries lie.
#pragma once

#include <cstdint>
#include <span>

#include "device/exec.h"
#include "model/model.h"
#include "model/sequence_state.h"
#include "model/step_context.h"
#include "tensor/buffer.h"
#include "tensor/view.h"

namespace onecard::engine {

enum class PrefillMode { kFull, kExact, kBounded };

/// The encoder's output of the last prompt tokens: what the decoder will need when the prompt ends.
/// One for each prompt being read; empty between prompts.
class EncoderTail {
 public:
  EncoderTail(const model::ModelConfig& config, PrefillMode mode, Backend backend = Backend::kCpu);

  int64_t num_rows() const { return num_rows_; }
  int64_t capacity_rows() const { return capacity_rows_; }
  void clear() { num_rows_ = num_appended_ = 0; }
  /// A chunk is about to be read; the first one says whether the decoder's windows reach up to the
  /// prompt.
  void start_chunk(bool has_decoder_windows) {
    if (num_rows_ == 0) decoder_windows_before_ = has_decoder_windows;
  }
  bool decoder_windows_before() const { return decoder_windows_before_; }
  /// Appends dense rows, streams [tokens, hc_mult * hidden] and mix [tokens, hc_mult], and forgets
  /// the oldest beyond the capacity.
  void append(const Exec& exec, View<const float> streams, View<const float> mix);
  /// All rows that there are, oldest first.   streams, mix: [num_rows(), ...], dense.
  void copy_to(const Exec& exec, View<float> streams, View<float> mix) const;
  int64_t allocated_bytes() const;

 private:
  int64_t capacity_rows_ = 0;
  int64_t stream_width_ = 0;
  int64_t mix_width_ = 0;
  int64_t num_rows_ = 0;
  int64_t num_appended_ = 0;  // since the prompt began
  bool decoder_windows_before_ = true;
  Buffer<float> streams_;  // rings: the row appended i-th is row i % capacity
  Buffer<float> mix_;
};

struct PrefillOptions {
  PrefillMode mode = PrefillMode::kExact;
  bool last = true;  // the chunk ends the prompt
  bool all_logits =
      false;  // kFull: logits of every token of the chunk, else of the last of the prompt
  model::Observer* observer = nullptr;
};

class PrefillPass {
 public:
  /// `exec` runs it, of the model's backend. `workspace` must have workspace_rows() rows or more
  /// and, like everything else, outlive the pass; `logits` [1 or tokens.size(), vocab_size] is
  /// written by the last run_layer() and may be empty when none are due. `tail` collects across the
  /// chunks of one prompt; kFull leaves it empty. Throws kInvalidArgument on an id outside the
  /// vocabulary, no tokens, bad shapes, or a state without decoder windows followed by too few
  /// tokens; kResourceExhausted when the sequence has no room.
  PrefillPass(const Exec& exec, const model::Model& model, model::Workspace& workspace,
              model::SequenceState& sequence, EncoderTail& tail, std::span<const int32_t> tokens,
              const PrefillOptions& options, View<float> logits);

  /// Advances by one layer; true when that was the last one: the sequence then holds the chunk. An
  /// exception leaves the sequence unusable until clear().
  bool run_layer();
  bool done() const { return done_; }
  /// Layers that remain, for progress.
  int64_t num_layers_left() const;

  /// Rows a workspace needs for chunks of at most `chunk_tokens`.
  static int64_t workspace_rows(const model::ModelConfig& config, PrefillMode mode,
                                int64_t chunk_tokens);

 private:
  void end_encoder();
  void finish();

  const model::Model& model_;
  model::SequenceState& sequence_;
  EncoderTail& tail_;
  PrefillOptions options_;
  View<float> logits_;
  model::StepContext ctx_;
  int64_t num_tokens_ = 0;
  int64_t layer_idx_ = 0;
  View<float> x_;
  View<float> mix_;
  bool done_ = false;
};

}  // namespace onecard::engine
