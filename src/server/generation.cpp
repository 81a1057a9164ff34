#include "server/generation.h"

#include <algorithm>
#include <array>
#include <utility>

#include "text/chat_tokens.h"

namespace onecard::server {
namespace {

double seconds_since(engine::Clock::time_point from, engine::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

bool has_markers(const text::Tokenizer& tokenizer) {
  static constexpr std::array kMarkers = {text::kThinkOpen, text::kThinkClose, text::kDsml};
  return std::all_of(kMarkers.begin(), kMarkers.end(), [&](std::string_view marker) {
    return tokenizer.added_token(marker).has_value();
  });
}

ApiError error_of(const engine::FinishedEvent& finished) {
  switch (finished.reason) {
    case engine::FinishReason::kDeadline:
      return ApiError(504, finished.message, "", "deadline_exceeded");
    case engine::FinishReason::kSlowReader:
      return ApiError(408, finished.message, "", "slow_reader");
    case engine::FinishReason::kCancelled:
      return ApiError(503, "the request was cancelled: " + finished.message, "", "cancelled");
    default:
      return ApiError(500, finished.message, "", "generation_failed");
  }
}

}  // namespace

Generation::Generation(const text::Tokenizer& tokenizer, Metrics& metrics,
                       GenerationOptions options)
    : tokenizer_(tokenizer),
      metrics_(metrics),
      options_(std::move(options)),
      detokenizer_(tokenizer),
      ordinary_(options_.markers_are_tokens && has_markers(tokenizer) ? text::TextOrigin::kOrdinary
                                                                      : text::TextOrigin::kUnknown),
      stop_(options_.stop) {
  if (options_.parser) parser_.emplace(std::move(*options_.parser));
}

void Generation::start(engine::SequenceHandle handle, int64_t num_prompt_tokens) {
  handle_ = std::move(handle);
  usage_.prompt_tokens = num_prompt_tokens;
  started_ = engine::Clock::now();
}

bool Generation::pull(text::MessageEvents& events) {
  gaps_.clear();
  while (!ended_) {
    std::optional<engine::Event> event = handle_.try_pop();
    if (!event) break;
    if (auto* token = std::get_if<engine::TokenEvent>(&*event))
      take_token(std::move(*token), events);
    else if (auto* prompt = std::get_if<engine::PromptEvent>(&*event))
      prompt_tokens_ = std::move(prompt->tokens);
    else
      finish(std::get<engine::FinishedEvent>(*event), events);
  }
  metrics_.observe_token_gaps(gaps_);
  return ended_;
}

void Generation::take_token(engine::TokenEvent token, text::MessageEvents& events) {
  if (stopped_) return;
  if (usage_.completion_tokens == 0)
    metrics_.observe_first_token(seconds_since(started_, token.time));
  else
    gaps_.push_back(seconds_since(last_token_, token.time));
  last_token_ = token.time;
  ++usage_.completion_tokens;

  // A model may have more ids than its tokenizer has tokens: they stand for nothing.
  const bool known = token.token < tokenizer_.vocab_size();
  if (known && !(options_.skip_special_tokens && tokenizer_.is_special(token.token))) {
    std::string text;
    text::TextOrigin origin = ordinary_;
    if (origin == text::TextOrigin::kOrdinary && tokenizer_.is_added(token.token)) {
      detokenizer_.finish(text);
      take_text(std::exchange(text, {}), origin, events);
      origin = text::TextOrigin::kMarker;
    }
    detokenizer_.push(token.token, text);
    take_text(text, origin, events);
  }
  if (parser_ && !parser_->past_reasoning()) ++usage_.reasoning_tokens;
  if (options_.keep_tokens) tokens_.push_back(std::move(token));
  if (stopped_) handle_.stop();
}

void Generation::take_text(const std::string& text, text::TextOrigin origin,
                           text::MessageEvents& events) {
  if (text.empty()) return;
  if (parser_) {
    for (auto& event : parser_->feed(text, origin)) events.push_back(std::move(event));
    stopped_ = parser_->wants_stop();
    return;
  }
  std::string out;
  stopped_ = stop_.push(text, out);
  if (stopped_ && options_.include_stop_string) out += stop_.met();
  if (!out.empty()) events.push_back(text::ContentDelta{std::move(out)});
}

void Generation::finish(const engine::FinishedEvent& finished, text::MessageEvents& events) {
  ended_ = true;
  usage_.cached_tokens = finished.cached_tokens;
  const bool by_itself = finished.reason == engine::FinishReason::kStop ||
                         finished.reason == engine::FinishReason::kLength;
  if (!by_itself && !stopped_) {
    error_ = error_of(finished);
    return;
  }
  if (!stopped_) stop_token_id_ = finished.stop_token_id;
  finish_text(!stopped_ && finished.reason == engine::FinishReason::kLength
                  ? text::OutputEnd::kTokenLimit
                  : text::OutputEnd::kEndOfTurn,
              events);
  metrics_.observe_finished({.end_to_end_seconds = seconds_since(started_, engine::Clock::now()),
                             .queue_seconds = finished.queue_seconds,
                             .prefill_seconds = finished.prefill_seconds,
                             .decode_seconds = finished.decode_seconds,
                             .prompt_tokens = finished.prompt_tokens,
                             .generation_tokens = usage_.completion_tokens});
}

void Generation::finish_text(text::OutputEnd end, text::MessageEvents& events) {
  if (!stopped_) {
    std::string rest;
    detokenizer_.finish(rest);
    take_text(rest, ordinary_, events);
  }
  if (parser_) {
    for (auto& event : parser_->finish(end)) events.push_back(std::move(event));
    return;
  }
  text::MessageEnd last;
  if (stopped_) {
    last.stop_string = stop_.met();
  } else {
    std::string held;
    stop_.flush(held);
    if (!held.empty()) events.push_back(text::ContentDelta{std::move(held)});
    if (end == text::OutputEnd::kTokenLimit) last.reason = text::FinishReason::kLength;
  }
  events.push_back(std::move(last));
}

}  // namespace onecard::server
