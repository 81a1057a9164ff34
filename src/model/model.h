// The model: weights by name, and the forward as a sequence of layers. Immutable after load(), but
// for what the expert engine and the engram reader own; used by one thread at a time. Sequences and
// scratch are handed in, made for backend(), as is the Exec: see engine/prefill_pass.h and
// engine/decode_step.h for how to run it. On a device everything is queued on one stream; the host
// waits for it in begin() and logits() alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experts/expert_engine.h"
#include "experts/expert_weights.h"
#include "io/checkpoint.h"
#include "io/engram_reader.h"
#include "model/config.h"
#include "model/step_context.h"
#include "ops/exl3_kernels.h"
#include "tensor/view.h"

namespace onecard::model {

struct ModelOptions {
  Backend backend = Backend::kCpu;  // whose ops run the model; weights lie where these read them
  int engram_threads = 4;           // that read rows from disk
  /// Of EXL3 experts on the CPU; nothing: see CpuExperts.
  std::optional<ops::Exl3Precision> expert_precision = {};
  /// Makes the expert engine; empty: CpuExperts, or on CUDA ResidentExperts.
  std::function<std::unique_ptr<experts::ExpertEngine>(experts::ExpertWeights)> make_experts = {};
};

class Model {
 public:
  /// Takes the checkpoint over; weights that need no change stay mapped. The engram id map is
  /// engram_token_map.i32 in the checkpoint's directory. Throws kDataCorrupt when a tensor is
  /// missing, of another shape or dtype or of an unknown name (each with file, tensor, expected and
  /// found), kIo when a file became shorter meanwhile.
  static std::unique_ptr<Model> load(io::Checkpoint checkpoint, ModelConfig config,
                                     const ModelOptions& options = {});
  ~Model();

  const ModelConfig& config() const;
  Backend backend() const;
  int64_t vocab_size() const { return config().vocab_size; }
  int64_t num_layers() const { return config().num_hidden_layers; }
  experts::ExpertEngine& experts() const;
  /// Bytes of weights held in memory of our own (not mapped from the checkpoint), or on the device.
  int64_t owned_bytes() const;

  // The parts of a forward, in order; x: [tokens, hc_mult * hidden] f32 streams, mix: [tokens,
  // hc_mult] f32, the carried weights of the next collapse.

  /// Starts: checks ids and room, hashes n-grams, asks for engram rows, embeds into x and mix.
  /// Throws kInvalidArgument on an id outside the vocabulary, kResourceExhausted without room;
  /// nothing has changed then.
  void begin(StepContext& ctx, std::span<const int32_t> token_ids, View<float> x,
             View<float> mix) const;
  /// The two halves of begin(): what the host does, and what is queued. A decode step's second half
  /// and its layers, up to the one that waits for engram rows, queue the same work at every step.
  void stage(StepContext& ctx, std::span<const int32_t> token_ids) const;
  void start(StepContext& ctx, View<float> x, View<float> mix) const;
  /// Waits until the engram rows of a layer have been read. Throws kIo.
  void await_engram_rows(StepContext& ctx, int64_t layer_idx) const;
  /// Starts in the middle: x and mix are filled already (the encoder's output).
  void resume(StepContext& ctx) const;
  /// Runs a layer on all rows of ctx and keeps the last `num_out` rows: x, mix and ctx then have
  /// num_out rows. Throws kIo when engram rows cannot be read, kDevice when a file whose weights
  /// stay mapped lost pages.
  void run_layer(StepContext& ctx, int64_t layer_idx, int64_t num_out, View<float>& x,
                 View<float>& mix) const;
  /// What a prompt token leaves behind in the decoder: the global rows of layer decoder_begin().
  void append_decoder_rows(StepContext& ctx, View<const float> x, View<const float> mix) const;
  /// logits: [tokens, vocab_size] on the host; there on return, and with them all that was queued.
  void logits(StepContext& ctx, View<const float> x, View<const float> mix,
              View<float> logits) const;
  /// On a device the two halves of logits() of at most kMostHeadRows rows: what is queued, and the
  /// way to the host, where they are on return.
  static constexpr int64_t kMostHeadRows = 64;
  void head(StepContext& ctx, View<const float> x, View<const float> mix) const;
  void fetch_logits(StepContext& ctx, View<float> logits) const;

 private:
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace onecard::model
