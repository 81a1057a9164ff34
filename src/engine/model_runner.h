// What the step loop needs of a model, and nothing more: slots that hold one sequence each, prefill
// in resumable passes, one decode step for several slots. Called by the engine thread alone.
// Implemented over the real model by model_runner.cpp, and by fakes in tests.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "tensor/view.h"

namespace onecard::engine {

/// One chunk of one sequence's prompt on its way through the layers. Dropping it before its end
/// leaves the slot unusable until release().
class ChunkPass {
 public:
  virtual ~ChunkPass() = default;

  /// Advances by one layer. True when that was the last. The slot then holds the chunk's tokens.
  virtual bool run_layer() = 0;
};

struct DecodeRow {
  int slot = 0;
  int32_t token = 0;  // appended to the slot's sequence
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual int num_slots() const = 0;
  virtual int64_t context_length() const = 0;
  virtual int64_t vocab_size() const = 0;

  /// Starts a chunk of an empty slot or behind what it holds. `last`: decode() follows, and nothing
  /// else of this kind. One pass at a time; decode() of other slots may come between its layers.
  /// `logits`: empty, or [tokens.size(), vocab_size], written by the last layer with what follows
  /// each token; then every chunk of the sequence has to ask for them, and nothing was restored.
  virtual std::unique_ptr<ChunkPass> start_chunk(int slot, std::span<const int32_t> tokens,
                                                 bool last, View<float> logits) = 0;

  /// One step for all rows; logits: [rows.size(), vocab_size]. A row's logits do not depend on the
  /// other rows.
  virtual void decode(std::span<const DecodeRow> rows, View<float> logits) = 0;

  /// Puts the longest known prefix of `prompt`, without its last token, into the empty slot;
  /// returns its length. What follows gives the same logits as without. Only prefixes kept under
  /// the same `salt` count.
  virtual int64_t restore_prefix(int /*slot*/, std::span<const int32_t> /*prompt*/,
                                 std::string_view /*salt*/) {
    return 0;
  }
  /// Remembers what the slot holds, which is `tokens`, for restore_prefix().
  virtual void keep_prefix(int /*slot*/, std::span<const int32_t> /*tokens*/,
                           std::string_view /*salt*/) {}

  /// Forgets the slot's sequence.
  virtual void release(int slot) = 0;
};

}  // namespace onecard::engine
