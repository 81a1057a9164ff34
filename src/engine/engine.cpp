#include "engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>
#include <stop_token>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "base/log.h"
#include "engine/model_runner.h"
#include "engine/step_loop.h"

namespace onecard::engine {

struct Engine::Impl {
  Impl(std::unique_ptr<ModelRunner> runner, EngineOptions options_in)
      : options(std::move(options_in)),
        context_length(runner->context_length()),
        vocab_size(runner->vocab_size()),
        loop(std::move(runner), options),
        thread([this](std::stop_token stop) { run(stop); }) {}

  void run(const std::stop_token& stop);
  void fail(const std::string& why);

  const EngineOptions options;
  const int64_t context_length;
  const int64_t vocab_size;

  mutable std::mutex mutex;  // guards what follows, up to the blank line
  uint64_t next_id = 1;
  std::condition_variable_any work;
  std::vector<std::unique_ptr<Sequence>> inbox;
  std::unordered_map<uint64_t, std::weak_ptr<EventQueue>> by_id;  // for cancel by id
  int64_t num_in_flight = 0;                                      // in the inbox or in the loop
  State state = State::kReady;
  std::string failure;
  Counters counters;

  StepLoop loop;        // engine thread
  std::jthread thread;  // last: it uses all of the above
};

void Engine::Impl::run(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "engine");
  int64_t num_finished_before = 0;
  bool failed = false;
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex);
      if (loop.idle()) work.wait(lock, stop, [this] { return !inbox.empty(); });
      for (auto& sequence : inbox) loop.add(std::move(sequence));
      inbox.clear();
    }
    try {
      if (!failed) loop.run_turn();
    } catch (const std::exception& error) {
      // A device error, or a defect: what the model holds cannot be trusted any more.
      failed = true;
      fail(error.what());
    }
    if (failed) loop.finish_all(FinishReason::kError, "the engine has failed");
    const Counters now = loop.counters();
    const int64_t num_finished = loop.num_finished();
    const std::lock_guard lock(mutex);
    counters = now;
    num_in_flight -= num_finished - num_finished_before;
    if (num_finished != num_finished_before)
      std::erase_if(by_id, [](const auto& entry) { return entry.second.expired(); });
    num_finished_before = num_finished;
  }
  {
    const std::lock_guard lock(mutex);
    for (auto& sequence : inbox) loop.add(std::move(sequence));
    inbox.clear();
    if (state == State::kReady) state = State::kDraining;
  }
  loop.finish_all(FinishReason::kCancelled, "the server is shutting down");
}

void Engine::Impl::fail(const std::string& why) {
  {
    const std::lock_guard lock(mutex);
    state = State::kFailed;
    failure = why;
  }
  log::error("engine_failed", {{"error", why}});
  if (options.on_failed) options.on_failed(why);
}

Engine::Engine(std::unique_ptr<ModelRunner> runner, EngineOptions options)
    : impl_(std::make_unique<Impl>(std::move(runner), std::move(options))) {}

Engine::~Engine() = default;

std::unique_ptr<Sequence> Engine::make_sequence(SequenceRequest&& request) const {
  const auto num_prompt = int64_t(request.prompt.size());
  require(num_prompt > 0, ErrorCode::kInvalidArgument, "prompt: must not be empty");
  if (num_prompt >= impl_->context_length)
    throw Error(ErrorCode::kInvalidArgument, "prompt: " + std::to_string(num_prompt) +
                                                 " tokens leave no room in a context of " +
                                                 std::to_string(impl_->context_length));
  const auto check_id = [&](const char* name, int32_t token) {
    if (token < 0 || token >= impl_->vocab_size)
      throw Error(ErrorCode::kInvalidArgument, std::string(name) + ": no token has the id " +
                                                   std::to_string(token) + " (the vocabulary has " +
                                                   std::to_string(impl_->vocab_size) + ")");
  };
  for (const int32_t token : request.prompt) check_id("prompt", token);
  for (const auto& [token, bias] : request.sampling.logit_bias) check_id("logit_bias", token);
  if (request.sampling.allowed_tokens)
    for (const int32_t token : *request.sampling.allowed_tokens)
      check_id("allowed_token_ids", token);
  require(!request.max_tokens || *request.max_tokens > 0, ErrorCode::kInvalidArgument,
          "max_tokens: must be at least 1");
  require(!request.prompt_logprobs || *request.prompt_logprobs >= 0, ErrorCode::kInvalidArgument,
          "prompt_logprobs: must not be negative");

  auto sequence = std::make_unique<Sequence>();
  sequence->max_tokens = impl_->context_length - num_prompt;
  if (request.max_tokens)
    sequence->max_tokens = std::min(sequence->max_tokens, *request.max_tokens);
  sequence->stop_ids = request.stop_token_ids;
  if (!request.ignore_eos)
    sequence->stop_ids.insert(sequence->stop_ids.end(), impl_->options.stop_token_ids.begin(),
                              impl_->options.stop_token_ids.end());
  const uint64_t seed = request.sampling.seed ? *request.sampling.seed : std::random_device{}();
  sequence->sampler = std::make_unique<Sampler>(request.sampling, seed, request.prompt,
                                                sequence->stop_ids, request.min_tokens);
  sequence->events = std::make_shared<EventQueue>(size_t(impl_->options.event_queue_capacity),
                                                  std::move(request.wake));
  sequence->tokens = std::move(request.prompt);
  sequence->num_prompt = num_prompt;
  sequence->request = std::move(request);
  sequence->submitted = Clock::now();
  return sequence;
}

Submission Engine::submit(SequenceRequest request) {
  std::vector<SequenceRequest> one;
  one.push_back(std::move(request));
  GroupSubmission group = submit_together(std::move(one));
  if (group.admit != Admit::kAccepted) return {group.admit, {}};
  return {group.admit, std::move(group.handles.front())};
}

GroupSubmission Engine::submit_together(std::vector<SequenceRequest> requests) {
  const EngineOptions& options = impl_->options;
  const int64_t most = int64_t{options.max_num_seqs} + options.max_queued_seqs;
  const auto num_requests = int64_t(requests.size());
  if (num_requests > most)
    throw Error(ErrorCode::kInvalidArgument, "n: " + std::to_string(num_requests) +
                                                 " answers at once are more than the " +
                                                 std::to_string(most) + " that this server holds");
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (SequenceRequest& request : requests) sequences.push_back(make_sequence(std::move(request)));

  GroupSubmission group;
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->state == State::kFailed) return {Admit::kFailed, {}};
    if (impl_->state == State::kDraining) return {Admit::kDraining, {}};
    if (impl_->num_in_flight + num_requests > most) return {Admit::kQueueFull, {}};
    impl_->num_in_flight += num_requests;
    for (auto& sequence : sequences) {
      sequence->id = impl_->next_id++;
      impl_->by_id.emplace(sequence->id, sequence->events);
      group.handles.emplace_back(sequence->id, sequence->events);
      impl_->inbox.push_back(std::move(sequence));
    }
  }
  impl_->work.notify_one();
  group.admit = Admit::kAccepted;
  return group;
}

void Engine::cancel(uint64_t sequence_id) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->by_id.find(sequence_id);
  if (found == impl_->by_id.end()) return;
  if (const auto events = found->second.lock()) events->request_end(EndRequest::kCancel);
}

void Engine::drain() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->state == State::kReady) impl_->state = State::kDraining;
}

bool Engine::idle() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->num_in_flight == 0;
}

State Engine::state() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->state;
}

std::string Engine::failure() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->failure;
}

Counters Engine::counters() const {
  const std::lock_guard lock(impl_->mutex);
  Counters counters = impl_->counters;
  counters.num_waiting += int64_t(impl_->inbox.size());
  return counters;
}

int64_t Engine::context_length() const { return impl_->context_length; }
int64_t Engine::vocab_size() const { return impl_->vocab_size; }

}  // namespace onecard::engine
