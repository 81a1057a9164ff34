#include "engine/step_loop.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace onecard::engine {
namespace {

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// What a failed operation of the model costs: these end the sequences that needed it, anything else
// ends the engine.
bool ends_sequences_only(ErrorCode code) { return code != ErrorCode::kDevice; }

}  // namespace

StepLoop::StepLoop(std::unique_ptr<ModelRunner> runner, const EngineOptions& options)
    : runner_(std::move(runner)), options_(options) {
  require(options_.max_num_seqs >= 1 && options_.max_num_seqs <= runner_->num_slots(),
          ErrorCode::kInvalidArgument, "max_num_seqs: must be from 1 to the model's slots");
  require(options_.prefill_chunk_tokens >= 1, ErrorCode::kInvalidArgument,
          "prefill_chunk_tokens: must be at least 1");
  for (int slot = options_.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  const auto vocab = size_t(runner_->vocab_size());
  logits_.resize(vocab * size_t(options_.max_num_seqs));
  prompt_logits_.resize(vocab *
                        size_t(std::min(kLogitsChunkTokens, options_.prefill_chunk_tokens)));
  counters_.kv_tokens_capacity = runner_->context_length() * options_.max_num_seqs;
}

StepLoop::~StepLoop() = default;

void StepLoop::add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

void StepLoop::run_turn() {
  end_unwanted();
  fill_slots();
  run_prefill_layer();
  run_decode_step();
}

void StepLoop::end_unwanted() {
  const Clock::time_point now = Clock::now();
  std::erase_if(waiting_, [&](const auto& s) { return end_if_unwanted(*s, now); });
  for (const auto& sequence : running_) end_if_unwanted(*sequence, now);
  drop_finished();
}

bool StepLoop::end_if_unwanted(Sequence& sequence, Clock::time_point now) {
  switch (sequence.events->end_request()) {
    case EndRequest::kStop:
      finish(sequence, FinishReason::kStop);
      return true;
    case EndRequest::kCancel:
      finish(sequence, FinishReason::kCancelled);
      return true;
    case EndRequest::kNone:
      break;
  }
  if (!sequence.request.deadline || now < *sequence.request.deadline) return false;
  finish(sequence, FinishReason::kDeadline, "the request's deadline has passed");
  return true;
}

void StepLoop::fill_slots() {
  while (!waiting_.empty() && !free_slots_.empty()) {
    std::unique_ptr<Sequence> sequence = std::move(waiting_.front());
    waiting_.pop_front();
    sequence->slot = free_slots_.back();
    free_slots_.pop_back();
    sequence->phase = Sequence::Phase::kPrefill;
    sequence->started = Clock::now();
    running_.push_back(std::move(sequence));
  }
}

// An earlier prompt that is the same is being read, and its end will be kept.
bool StepLoop::waits_for_another(const Sequence& sequence) const {
  if (sequence.num_in_slot > 0 || sequence.request.prompt_logprobs) return false;
  return std::any_of(running_.begin(), running_.end(), [&](const auto& other) {
    return other->id < sequence.id && other->phase == Sequence::Phase::kPrefill &&
           other->request.cache_salt == sequence.request.cache_salt &&
           other->tokens == sequence.tokens;
  });
}

// Whose chunk comes next: the first prompt behind the one whose chunk came last, in order of
// admission, and around. Prompts without anything left to read go on to decode.
void StepLoop::choose_prefill() {
  Sequence* first = nullptr;
  Sequence* next = nullptr;
  for (const auto& sequence : running_) {
    if (sequence->phase != Sequence::Phase::kPrefill || waits_for_another(*sequence)) continue;
    if (first == nullptr) first = sequence.get();
    if (next == nullptr && sequence->id > last_prefilled_id_) next = sequence.get();
  }
  pass_owner_ = next != nullptr ? next : first;
  if (pass_owner_ == nullptr) return;
  Sequence& sequence = *pass_owner_;
  last_prefilled_id_ = sequence.id;
  const bool wants_logits = sequence.request.prompt_logprobs.has_value();
  if (sequence.num_in_slot == 0 && sequence.num_prompt > 1 && !wants_logits) {
    sequence.num_cached =
        runner_->restore_prefix(sequence.slot, sequence.tokens, sequence.request.cache_salt);
    sequence.num_in_slot = sequence.num_cached;
    counters_.prefix_cache_queries += sequence.num_prompt - 1;
    counters_.prefix_cache_hits += sequence.num_cached;
  }
  const int64_t left = sequence.num_prompt - 1 - sequence.num_in_slot;
  if (left == 0) {
    sequence.phase = Sequence::Phase::kDecode;
    pass_owner_ = nullptr;
    return;
  }
  pass_tokens_ = std::min(left, options_.prefill_chunk_tokens);
  View<float> logits;
  if (wants_logits) {
    pass_tokens_ = std::min(pass_tokens_, kLogitsChunkTokens);
    logits = View<float>(prompt_logits_.data(), pass_tokens_, runner_->vocab_size());
  }
  pass_ = runner_->start_chunk(
      sequence.slot,
      std::span(sequence.tokens).subspan(size_t(sequence.num_in_slot), size_t(pass_tokens_)),
      pass_tokens_ == left, logits);
}

void StepLoop::run_prefill_layer() {
  try {
    if (pass_ == nullptr) choose_prefill();
    if (pass_ != nullptr && pass_->run_layer()) end_chunk(*pass_owner_);
  } catch (const Error& error) {
    if (!ends_sequences_only(error.code()) || pass_owner_ == nullptr) throw;
    finish(*pass_owner_, FinishReason::kError, error.what());
    drop_finished();
  }
}

void StepLoop::end_chunk(Sequence& sequence) {
  pass_.reset();
  if (sequence.request.prompt_logprobs) take_prompt_logprobs(sequence);
  sequence.num_in_slot += pass_tokens_;
  ++counters_.num_prefill_chunks;
  count_iteration(pass_tokens_);
  const bool ends_prompt = sequence.num_in_slot == sequence.num_prompt - 1;
  // Short chunks with logits come too often to be kept each.
  if (ends_prompt || !sequence.request.prompt_logprobs)
    runner_->keep_prefix(sequence.slot,
                         std::span(sequence.tokens).first(size_t(sequence.num_in_slot)),
                         sequence.request.cache_salt);
  if (ends_prompt) sequence.phase = Sequence::Phase::kDecode;
  pass_owner_ = nullptr;
}

void StepLoop::count_iteration(int64_t num_tokens) {
  counters_.tokens_computed += num_tokens;
  const auto bound =
      std::lower_bound(kIterationTokenBounds.begin(), kIterationTokenBounds.end(), num_tokens);
  ++counters_.iterations_by_tokens[size_t(bound - kIterationTokenBounds.begin())];
}

void StepLoop::take_prompt_logprobs(Sequence& sequence) {
  const View<float> logits(prompt_logits_.data(), pass_tokens_, runner_->vocab_size());
  for (int64_t i = 0; i < pass_tokens_; ++i)
    set_logprobs(logits.row_span(i), sequence.tokens[size_t(sequence.num_in_slot + i + 1)],
                 *sequence.request.prompt_logprobs, sequence.prompt_event.tokens.emplace_back());
}

void StepLoop::run_decode_step() {
  decode_rows_.clear();
  decode_sequences_.clear();
  for (const auto& sequence : running_) {
    if (sequence->phase != Sequence::Phase::kDecode) continue;
    decode_rows_.push_back({sequence->slot, sequence->tokens.back()});
    decode_sequences_.push_back(sequence.get());
  }
  if (decode_rows_.empty()) return;
  const View<float> logits(logits_.data(), int64_t(decode_rows_.size()), runner_->vocab_size());
  try {
    runner_->decode(decode_rows_, logits);
    ++counters_.num_steps;
    count_iteration(int64_t(decode_rows_.size()));
  } catch (const Error& error) {
    if (!ends_sequences_only(error.code())) throw;
    for (Sequence* sequence : decode_sequences_)
      finish(*sequence, FinishReason::kError, error.what());
  }
  for (size_t i = 0; i < decode_sequences_.size(); ++i) {
    Sequence& sequence = *decode_sequences_[i];
    if (sequence.slot < 0) continue;  // just failed
    ++sequence.num_in_slot;
    try {
      take_token(sequence, logits.row_span(int64_t(i)));
    } catch (const Error& error) {
      if (!ends_sequences_only(error.code())) throw;
      finish(sequence, FinishReason::kError, error.what());
    }
  }
  drop_finished();
}

void StepLoop::take_token(Sequence& sequence, std::span<float> logits) {
  if (sequence.num_sampled() == 0) {
    sequence.answering = Clock::now();
    counters_.prompt_tokens += sequence.num_prompt;
    counters_.prompt_tokens_cached += sequence.num_cached;
    if (sequence.request.prompt_logprobs)
      sequence.events->try_push(std::exchange(sequence.prompt_event, {}));
  }
  TokenEvent event;
  const int32_t token = sequence.sampler->sample(logits, sequence.request.constraint.get(), event);
  if (token < 0) return finish(sequence, FinishReason::kStop);
  if (std::find(sequence.stop_ids.begin(), sequence.stop_ids.end(), token) !=
      sequence.stop_ids.end())
    return finish(sequence, FinishReason::kStop, "", token);
  event.time = Clock::now();
  sequence.tokens.push_back(token);
  ++counters_.generation_tokens;
  if (!sequence.events->try_push(std::move(event)))
    return finish(sequence, FinishReason::kSlowReader,
                  "the client reads more slowly than the answer is generated");
  if (sequence.num_sampled() == sequence.max_tokens) finish(sequence, FinishReason::kLength);
}

void StepLoop::finish(Sequence& sequence, FinishReason reason, const std::string& message,
                      std::optional<int32_t> stop_token) {
  if (&sequence == pass_owner_) {
    pass_.reset();
    pass_owner_ = nullptr;
  } else if (sequence.phase == Sequence::Phase::kDecode && sequence.num_in_slot > 0 &&
             reason != FinishReason::kError) {
    runner_->keep_prefix(sequence.slot,
                         std::span(sequence.tokens).first(size_t(sequence.num_in_slot)),
                         sequence.request.cache_salt);
  }
  const Clock::time_point now = Clock::now();
  FinishedEvent event;
  event.reason = reason;
  event.stop_token_id = stop_token;
  event.message = message;
  event.prompt_tokens = sequence.num_prompt;
  event.cached_tokens = sequence.num_cached;
  event.completion_tokens = sequence.num_sampled();
  const bool had_slot = sequence.phase != Sequence::Phase::kWaiting;
  const bool answered = sequence.num_sampled() > 0;
  event.queue_seconds = seconds_between(sequence.submitted, had_slot ? sequence.started : now);
  if (had_slot)
    event.prefill_seconds = seconds_between(sequence.started, answered ? sequence.answering : now);
  if (answered) event.decode_seconds = seconds_between(sequence.answering, now);

  if (sequence.slot >= 0) {
    runner_->release(sequence.slot);
    free_slots_.push_back(sequence.slot);
    sequence.slot = -1;
  }
  switch (reason) {
    case FinishReason::kStop:
      ++counters_.finished_stop;
      break;
    case FinishReason::kLength:
      ++counters_.finished_length;
      break;
    case FinishReason::kCancelled:
    case FinishReason::kDeadline:
    case FinishReason::kSlowReader:
      ++counters_.finished_cancelled;
      break;
    case FinishReason::kError:
      ++counters_.finished_error;
      break;
  }
  sequence.events->push_last(std::move(event));
}

void StepLoop::drop_finished() {
  std::erase_if(running_, [](const auto& sequence) { return sequence->slot < 0; });
}

void StepLoop::finish_all(FinishReason reason, const std::string& message) {
  for (const auto& sequence : waiting_) finish(*sequence, reason, message);
  waiting_.clear();
  for (const auto& sequence : running_) finish(*sequence, reason, message);
  running_.clear();
}

Counters StepLoop::counters() const {
  Counters counters = counters_;
  counters.num_running = int64_t(running_.size());
  counters.num_waiting = int64_t(waiting_.size());
  for (const auto& sequence : running_) counters.kv_tokens_used += sequence->num_in_slot;
  return counters;
}

int64_t StepLoop::num_finished() const {
  return counters_.finished_stop + counters_.finished_length + counters_.finished_cancelled +
         counters_.finished_error;
}

}  // namespace onecard::engine
