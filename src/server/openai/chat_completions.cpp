#include "server/openai/chat_completions.h"

#include <utility>

#include "server/answer_exchange.h"
#include "server/chat_run.h"
#include "server/openai/chat_answer.h"
#include "server/openai/error_body.h"
#include "server/openai/token_json.h"

namespace onecard::server::openai {
namespace {

class ChatFormat final : public AnswerFormat {
 public:
  ChatFormat(const Service& service, const ChatRequest& request, std::vector<int32_t> prompt)
      : tokenizer_(service.tokenizer()), request_(request), prompt_(std::move(prompt)) {
    answer_.id = random_id("chatcmpl-");
    answer_.model = service.model_name(request.model);
    answer_.created = service.now();
    answer_.include_reasoning = request.include_reasoning;
    for (int i = 0; i < request.generation.n; ++i) streams_.emplace_back(answer_, i);
  }

  void begin(std::string& out) override {
    for (const ChatChoiceStream& stream : streams_) {
      json::Value chunk = stream.first_chunk();
      if (request_.generation.return_token_ids) chunk.set("prompt_token_ids", ids_json(prompt_));
      append_event(out, json::dump(chunk));
    }
  }

  void add(size_t choice_idx, Choice& choice, const text::MessageEvent& event,
           std::string& out) override {
    std::optional<json::Value> chunk = streams_[choice_idx].chunk(event, stop_id(choice));
    if (!chunk) return;
    for (json::Member& member : chunk->members())
      if (member.first == "choices") add_tokens(choice, member.second.items()[0]);
    if (request_.generation.continuous_usage_stats)
      chunk->set("usage", usage_json(choice.generation.usage()));
    append_event(out, json::dump(*chunk));
  }

  void end(const std::vector<Choice>& choices, std::string& out) override {
    if (request_.generation.include_usage)
      append_event(out, json::dump(usage_chunk(answer_, total_usage(choices))));
    append_event(out, "[DONE]");
  }

  void fail(const ApiError& error, std::string& out) override {
    append_event(out, error_body(error));
    append_event(out, "[DONE]");
  }

  std::string whole(std::vector<Choice>& choices) override {
    std::vector<json::Value> list;
    for (size_t i = 0; i < choices.size(); ++i) {
      list.push_back(chat_choice(answer_, int(i), text::fold(choices[i].events), json::Value(),
                                 stop_id(choices[i])));
      add_tokens(choices[i], list.back());
    }
    json::Value body = chat_completion(answer_, std::move(list), total_usage(choices));
    if (request_.generation.return_token_ids) body.set("prompt_token_ids", ids_json(prompt_));
    if (request_.generation.prompt_logprobs)
      body.set("prompt_logprobs",
               prompt_logprobs_json(choices[0].generation.prompt_tokens(),
                                    *request_.generation.prompt_logprobs, tokenizer_));
    return json::dump(body);
  }

  http::Response error(const ApiError& error) override { return error_response(error); }

 private:
  // Tokens that have been sampled since the last chunk; each is told once.
  void add_tokens(Choice& choice, json::Value& json) const {
    const GenerationFields& fields = request_.generation;
    if (request_.num_logprobs)
      json.set("logprobs",
               json::Value::object({{"content", logprobs_json(choice.tokens, tokenizer_,
                                                              fields.tokens_as_token_ids)}}));
    if (fields.return_token_ids) json.set("token_ids", ids_json(choice.tokens));
    choice.tokens.clear();
  }

  std::optional<int32_t> stop_id(const Choice& choice) const {
    return told_stop_id(choice.generation.stop_token_id(), request_.generation.stop_token_ids);
  }

  const text::Tokenizer& tokenizer_;
  const ChatRequest request_;
  const std::vector<int32_t> prompt_;
  ChatAnswer answer_;
  std::vector<ChatChoiceStream> streams_;
};

}  // namespace

std::unique_ptr<http::Exchange> start_chat_completion(Service& service,
                                                      const http::Request& request,
                                                      const http::Wake& wake) {
  const ChatRequest chat = parse_chat_request(request.body, service.options().chat);
  service.model_name(chat.model);  // unknown: 404, before anything is computed
  ChatRun run = run_chat(service, chat, request.id, wake);
  auto format = std::make_unique<ChatFormat>(service, chat, std::move(run.prompt));
  return std::make_unique<AnswerExchange>(std::move(run.choices), std::move(format),
                                          chat.generation.stream, request.id);
}

}  // namespace onecard::server::openai
