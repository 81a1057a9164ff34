// The scheduler: which sequence gets which slot, and what runs next. Everything here belongs to the
// engine thread; what other threads send arrives through Engine.
//
// One turn is one layer of a prefill chunk (if a prompt is being read) and one decode step of every
// sequence that is answering, so that neither a long prompt nor long answers stop the others.
// Chunks of several prompts take turns; of equal prompts one is read, and the others begin where
// its end was kept. The last token of a prompt is read by a decode step: what the slot holds before
// it is a prefix that the next prompt of the conversation shares, whatever the chat format puts
// behind it, and a repeated prompt finds all but one token.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/model_runner.h"
#include "engine/sampler.h"

namespace onecard::engine {

/// One growing list of tokens: the request, where it stands, and the queue to its reader.
struct Sequence {
  uint64_t id = 0;
  SequenceRequest request;
  std::shared_ptr<EventQueue> events;
  std::unique_ptr<Sampler> sampler;
  int64_t max_tokens = 0;  // resolved: at least 1, prompt and answer fit the context
  std::vector<int32_t> stop_ids;
  std::vector<int32_t> tokens;  // the prompt, then what was sampled
  int64_t num_prompt = 0;

  enum class Phase { kWaiting, kPrefill, kDecode };
  Phase phase = Phase::kWaiting;
  int slot = -1;
  int64_t num_in_slot = 0;   // of `tokens`
  int64_t num_cached = 0;    // of these, restored
  PromptEvent prompt_event;  // with prompt_logprobs: of the chunks so far
  int64_t num_sampled() const { return int64_t(tokens.size()) - num_prompt; }

  Clock::time_point submitted;
  Clock::time_point started;    // got a slot
  Clock::time_point answering;  // the first token was sampled
};

class StepLoop {
 public:
  /// Throws kInvalidArgument when the options do not fit the runner.
  StepLoop(std::unique_ptr<ModelRunner> runner, const EngineOptions& options);
  ~StepLoop();

  void add(std::unique_ptr<Sequence> sequence);
  bool idle() const { return waiting_.empty() && running_.empty(); }

  /// One turn. Errors that end one sequence end it here; a device error, or one nobody expects, is
  /// thrown, and the caller has to fail_all().
  void run_turn();

  /// Ends every sequence.
  void finish_all(FinishReason reason, const std::string& message);

  Counters counters() const;
  /// Sequences that have ended since the start.
  int64_t num_finished() const;

 private:
  using SequenceList = std::vector<std::unique_ptr<Sequence>>;

  void end_unwanted();
  bool end_if_unwanted(Sequence& sequence, Clock::time_point now);
  void fill_slots();
  bool waits_for_another(const Sequence& sequence) const;
  void choose_prefill();
  void run_prefill_layer();
  void end_chunk(Sequence& sequence);
  void count_iteration(int64_t num_tokens);
  void take_prompt_logprobs(Sequence& sequence);
  void run_decode_step();
  void take_token(Sequence& sequence, std::span<float> logits);
  void finish(Sequence& sequence, FinishReason reason, const std::string& message = "",
              std::optional<int32_t> stop_token = {});
  void drop_finished();

  std::unique_ptr<ModelRunner> runner_;
  EngineOptions options_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  SequenceList running_;  // in order of admission; a finished one leaves at the end of its part
  std::vector<int> free_slots_;

  std::unique_ptr<ChunkPass> pass_;
  Sequence* pass_owner_ = nullptr;
  int64_t pass_tokens_ = 0;
  uint64_t last_prefilled_id_ = 0;  // whose chunk came last

  std::vector<float> logits_;
  std::vector<float> prompt_logits_;  // of a chunk whose sequence wants them
  std::vector<DecodeRow> decode_rows_;
  std::vector<Sequence*> decode_sequences_;
  Counters counters_;
};

}  // namespace onecard::engine
