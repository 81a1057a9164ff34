// What the engine tells about one sequence, and the bounded queue it travels through.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace onecard::engine {

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct TokenEvent {
  int32_t token = 0;
  std::chrono::steady_clock::time_point time;  // when it was sampled
  float logprob = 0;              // with num_logprobs, of the distribution before temperature
  int64_t rank = 0;               // with num_logprobs: 1 is the likeliest
  std::vector<TokenLogprob> top;  // with num_logprobs, likeliest first
};

/// With prompt_logprobs, before the first token: the prompt's tokens behind its first, which
/// follows nothing and has no probability.
struct PromptEvent {
  std::vector<TokenEvent> tokens;
};

enum class FinishReason {
  kStop,        // a stop id, or nothing was allowed to follow
  kLength,      // max_tokens, or the context is full
  kCancelled,   // by the caller
  kDeadline,    // the request's deadline passed
  kSlowReader,  // the event queue was full
  kError,       // `message` says what failed
};

struct FinishedEvent {
  FinishReason reason = FinishReason::kStop;
  std::optional<int32_t> stop_token_id;  // with kStop
  std::string message;                   // with kDeadline, kSlowReader and kError
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;      // of the prompt, not computed
  int64_t completion_tokens = 0;  // sampled, the stop token not counted
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

enum class EndRequest { kNone, kStop, kCancel };

using Event = std::variant<TokenEvent, FinishedEvent, PromptEvent>;

/// Bounded, from the engine thread to one reader. The last event always finds room.
class EventQueue {
 public:
  /// `wake` is called by the pusher when the reader may have been waiting.
  EventQueue(size_t capacity, std::function<void()> wake)
      : capacity_(capacity), wake_(std::move(wake)) {}

  /// False when the reader is `capacity` events behind; nothing is pushed then.
  bool try_push(Event&& event) { return push(std::move(event), capacity_); }

  void push_last(FinishedEvent&& event) { push(Event(std::move(event)), capacity_ + 1); }

  std::optional<Event> try_pop() {
    const std::lock_guard lock(mutex_);
    if (events_.empty()) return std::nullopt;
    std::optional<Event> event(std::move(events_.front()));
    events_.pop_front();
    return event;
  }

  /// The reader's wish, seen by the engine before its next step or layer. The first one counts.
  void request_end(EndRequest wish) {
    EndRequest expected = EndRequest::kNone;
    end_request_.compare_exchange_strong(expected, wish, std::memory_order_relaxed);
  }
  EndRequest end_request() const { return end_request_.load(std::memory_order_relaxed); }

 private:
  bool push(Event&& event, size_t limit) {
    bool was_empty;
    {
      const std::lock_guard lock(mutex_);
      if (events_.size() >= limit) return false;
      was_empty = events_.empty();
      events_.push_back(std::move(event));
    }
    if (was_empty && wake_) wake_();
    return true;
  }

  const size_t capacity_;
  const std::function<void()> wake_;
  std::mutex mutex_;  // guards events_
  std::deque<Event> events_;
  std::atomic<EndRequest> end_request_{EndRequest::kNone};
};

}  // namespace onecard::engine
