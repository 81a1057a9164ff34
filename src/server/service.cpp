#include "server/service.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/api_error.h"
#include "text/grammar/tokenizer_trie.h"

namespace onecard::server {

Service::Service(engine::Engine& engine, const text::Tokenizer& tokenizer, ServiceOptions options)
    : engine_(engine),
      tokenizer_(tokenizer),
      trie_(text::make_token_trie(tokenizer)),
      options_(std::move(options)),
      metrics_(options_.model_names.at(0), engine.context_length()),
      created_(now()) {}

int64_t Service::now() const {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

const std::string& Service::model_name(const std::string& name) const {
  if (name.empty()) return options_.model_names.front();
  const auto found = std::find(options_.model_names.begin(), options_.model_names.end(), name);
  if (found == options_.model_names.end())
    throw ApiError(404, "The model `" + name + "` does not exist.", "model", "model_not_found");
  return *found;
}

void Service::check_length(int64_t num_prompt_tokens, const std::string& param,
                           std::optional<int64_t> max_tokens) const {
  const int64_t window = context_length();
  if (num_prompt_tokens < window) return;
  const std::string asked = max_tokens ? std::to_string(*max_tokens) : "at least 1";
  throw ApiError(400,
                 "This model's maximum context length is " + std::to_string(window) +
                     " tokens. The request has " + std::to_string(num_prompt_tokens) +
                     " tokens in the " + param + " and asks for " + asked +
                     " of the answer: shorten the " + param + " by at least " +
                     std::to_string(num_prompt_tokens - window + 1) + " tokens.",
                 param, "context_length_exceeded", "invalid_request_error");
}

std::vector<engine::SequenceHandle> Service::submit(std::vector<engine::SequenceRequest> requests) {
  engine::GroupSubmission submission = engine_.submit_together(std::move(requests));
  switch (submission.admit) {
    case engine::Admit::kAccepted:
      break;
    case engine::Admit::kQueueFull:
      throw ApiError(429, "The server is busy and its queue is full.", "", "queue_full")
          .set_retry_after(options_.retry_after_seconds);
    case engine::Admit::kDraining:
      throw ApiError(503, "The server is shutting down.", "", "shutting_down")
          .set_retry_after(options_.retry_after_seconds);
    case engine::Admit::kFailed:
      throw ApiError(503, "The engine has failed: " + engine_.failure(), "", "engine_failed");
  }
  return std::move(submission.handles);
}

engine::SequenceRequest Service::sequence_request(const openai::GenerationFields& fields,
                                                  std::vector<int32_t> prompt,
                                                  int choice_idx) const {
  engine::SequenceRequest request;
  request.prompt = std::move(prompt);
  request.sampling = fields.sampling;
  if (!request.sampling.seed) request.sampling.seed = options_.default_seed;
  if (request.sampling.seed) *request.sampling.seed += uint64_t(choice_idx);
  request.max_tokens = fields.max_tokens;
  request.min_tokens = fields.min_tokens;
  request.stop_token_ids = fields.stop_token_ids;
  request.ignore_eos = fields.ignore_eos;
  request.cache_salt = fields.cache_salt;
  if (options_.request_timeout_seconds)
    request.deadline = engine::Clock::now() +
                       std::chrono::duration_cast<engine::Clock::duration>(
                           std::chrono::duration<double>(*options_.request_timeout_seconds));
  return request;
}

}  // namespace onecard::server
