// The one boundary between frontends and the model.
//
// Who calls: any thread may submit, cancel and read state or counters; none of these calls waits.
// Who runs: one engine thread, owned by Engine, owns the model and everything that belongs to
// sequences; it is started by the constructor and joined by the destructor. How answers travel:
// each sequence has its own bounded queue of events, shared by the engine (which pushes) and the
// caller (which pops). After a push to an empty queue the engine thread calls the request's `wake`,
// which must only post a message and return. A reader that lets its queue fill up loses the
// sequence (FinishReason::kSlowReader): the engine waits for nobody.
//
// Below this header nothing knows HTTP or text; above it nothing knows slots, KV rows or layers.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/event_queue.h"

namespace onecard::engine {

class ModelRunner;
struct Sequence;

using Clock = std::chrono::steady_clock;

struct SamplingParams {
  double temperature = 1;  // 0: greedy
  double top_p = 1;        // (0, 1]
  int64_t top_k = 0;       // 0: off
  double min_p = 0;        // [0, 1]
  double presence_penalty = 0;
  double frequency_penalty = 0;
  double repetition_penalty = 1;
  std::optional<uint64_t> seed = {};                        // none: drawn by the engine
  std::vector<std::pair<int32_t, float>> logit_bias = {};   // added to the logits of these ids
  std::optional<std::vector<int32_t>> allowed_tokens = {};  // nothing else may be sampled
  std::optional<int> num_logprobs = {};  // log probabilities of the token and of so many others
};

/// Restricts what may be sampled next: a grammar, a forced text, a reasoning budget, words that
/// must not appear. Owned by its sequence; called by the engine thread alone, before and after each
/// sampled token.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  /// Clears bits of tokens that may not come next. Bit `id % 64` of word `id / 64` stands for `id`.
  /// Returns false when it clears nothing, which spares the sampler a pass. Clearing every bit ends
  /// the sequence with kStop.
  virtual bool restrict_next(std::span<uint64_t> allowed) = 0;

  /// `token` was sampled.
  virtual void accept(int32_t token) = 0;
};

struct SequenceRequest {
  std::string request_id;  // for logs
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  std::unique_ptr<TokenConstraint> constraint;  // may be null

  std::optional<int64_t> max_tokens;         // none, or more than fits: the rest of the context
  std::optional<int> prompt_logprobs;        // log probabilities of the prompt's tokens and of so
                                             // many others; reads all of it, cached or not
  int64_t min_tokens = 0;                    // stop ids are not sampled before so many tokens
  std::vector<int32_t> stop_token_ids = {};  // end the sequence; the token itself is not an event
  bool ignore_eos = false;                   // the model's own stop ids do not end the sequence
  std::optional<Clock::time_point> deadline;
  std::string cache_salt;  // prefixes are shared only between requests of equal salt

  std::function<void()> wake;  // called by the engine thread; must not wait or throw; may be empty
};

enum class Admit {
  kAccepted,
  kQueueFull,  // try again later
  kDraining,   // the engine takes no new work, for good
  kFailed,     // the engine is dead
};

enum class State { kReady, kDraining, kFailed };

/// What the caller holds of an accepted sequence. Dropping it cancels the sequence.
class SequenceHandle {
 public:
  SequenceHandle() = default;
  SequenceHandle(uint64_t sequence_id, std::shared_ptr<EventQueue> events)
      : sequence_id_(sequence_id), events_(std::move(events)) {}
  SequenceHandle(SequenceHandle&& other) noexcept = default;
  SequenceHandle& operator=(SequenceHandle&& other) noexcept {
    std::swap(sequence_id_, other.sequence_id_);
    std::swap(events_, other.events_);
    return *this;
  }
  ~SequenceHandle() { cancel(); }

  uint64_t sequence_id() const { return sequence_id_; }
  explicit operator bool() const { return events_ != nullptr; }

  /// The next event, or nothing when there is none yet. After a Finished event nothing follows.
  std::optional<Event> try_pop() { return events_ ? events_->try_pop() : std::nullopt; }

  /// Ends this sequence, and no other, before the next step or layer. Its Finished event says
  /// kCancelled unless it had ended by itself. Safe from any thread; may be called again.
  void cancel() {
    if (events_) events_->request_end(EndRequest::kCancel);
  }
  /// The reader has all it wanted (a stop text was found): as cancel(), but counted as kStop.
  void stop() {
    if (events_) events_->request_end(EndRequest::kStop);
  }

 private:
  uint64_t sequence_id_ = 0;
  std::shared_ptr<EventQueue> events_;
};

struct Submission {
  Admit admit = Admit::kFailed;
  SequenceHandle handle;  // empty unless accepted
};

struct GroupSubmission {
  Admit admit = Admit::kFailed;
  std::vector<SequenceHandle> handles;  // one for each request; empty unless accepted
};

/// Upper bounds of the tokens of an iteration, a prefill chunk or a decode step, by which they are
/// counted; those above them all have a place of their own.
constexpr std::array<int64_t, 13> kIterationTokenBounds = {1,   8,    16,   32,   64,   128,  256,
                                                           512, 1024, 2048, 4096, 8192, 16384};

/// Totals since the start, and gauges; a copy taken at one moment.
struct Counters {
  int64_t num_running = 0;  // sequences that hold a slot
  int64_t num_waiting = 0;
  int64_t kv_tokens_used = 0;
  int64_t kv_tokens_capacity = 0;
  int64_t prompt_tokens = 0;         // of sequences whose prefill has ended
  int64_t prompt_tokens_cached = 0;  // of these, taken from the prefix cache
  int64_t generation_tokens = 0;
  int64_t prefix_cache_queries = 0;  // tokens asked for
  int64_t prefix_cache_hits = 0;     // tokens found
  int64_t tokens_computed = 0;       // rows of prefill chunks and decode steps
  int64_t num_steps = 0;             // decode steps
  int64_t num_prefill_chunks = 0;
  std::array<int64_t, kIterationTokenBounds.size() + 1> iterations_by_tokens = {};
  int64_t finished_stop = 0;
  int64_t finished_length = 0;
  int64_t finished_cancelled = 0;  // also deadlines and slow readers
  int64_t finished_error = 0;
};

struct EngineOptions {
  int max_num_seqs = 4;      // decoding together; at most the runner's slots
  int max_queued_seqs = 64;  // more than these beyond max_num_seqs: submit() says kQueueFull
  int64_t prefill_chunk_tokens = 512;
  int event_queue_capacity = 1024;                             // events a reader may lag behind
  std::vector<int32_t> stop_token_ids = {};                    // the model's own: end of turn
  std::function<void(const std::string& why)> on_failed = {};  // engine thread; once; must not wait
};

/// A prefill chunk with prompt_logprobs is short: a row of logits is as long as the vocabulary.
constexpr int64_t kLogitsChunkTokens = 32;

class Engine {
 public:
  /// Takes the model over and starts the engine thread.
  Engine(std::unique_ptr<ModelRunner> runner, EngineOptions options);
  /// Cancels what is left and joins the engine thread.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Throws kInvalidArgument on an empty prompt, an id outside the vocabulary, a prompt that leaves
  /// no room for one token, or sampling parameters out of range.
  Submission submit(SequenceRequest request);
  /// All of them or none. Also throws kInvalidArgument when there are more than the engine ever
  /// holds. Equal prompts are read once if the runner keeps prefixes.
  GroupSubmission submit_together(std::vector<SequenceRequest> requests);

  /// Cancels by id; unknown and finished ids are ignored.
  void cancel(uint64_t sequence_id);

  /// From now on submit() says kDraining; accepted sequences go on to their end.
  void drain();
  /// No sequence is running or waiting.
  bool idle() const;

  State state() const;
  /// Why the engine failed; empty unless state() is kFailed.
  std::string failure() const;
  Counters counters() const;

  /// Tokens of prompt and answer together that one sequence may hold.
  int64_t context_length() const;
  int64_t vocab_size() const;

 private:
  std::unique_ptr<Sequence> make_sequence(SequenceRequest&& request) const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace onecard::engine
