#include "server/anthropic/endpoints.h"

#include <utility>

#include "server/answer_exchange.h"
#include "server/anthropic/message_answer.h"
#include "server/anthropic/message_request.h"
#include "server/chat_run.h"
#include "text/chat_encoder.h"

namespace onecard::server::anthropic {
namespace {

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 || status == 501 ? "invalid_request_error" : "api_error";
  }
}

json::Value error_json(const ApiError& error) {
  std::string message = error.what();
  // Agents begin to compact their history when they see these words.
  if (error.code() == "context_length_exceeded") message = "prompt is too long: " + message;
  return error_body(error_type(error.status()), message);
}

class MessageFormat final : public AnswerFormat {
 public:
  MessageFormat(MessageAnswer answer, Usage prompt_usage)
      : answer_(answer), prompt_usage_(prompt_usage), stream_(std::move(answer)) {}

  void begin(std::string& out) override { write(stream_.start(prompt_usage_), out); }
  void add(size_t, Choice& choice, const text::MessageEvent& event, std::string& out) override {
    std::vector<StreamEvent> events;
    stream_.add(event, choice.generation.usage(), events);
    for (const StreamEvent& stream_event : events) write(stream_event, out);
  }
  void end(const std::vector<Choice>&, std::string&) override {}
  void fail(const ApiError& error, std::string& out) override {
    append_event(out, "error", json::dump(error_json(error)));
  }
  std::string whole(std::vector<Choice>& choices) override {
    return json::dump(
        message_body(answer_, text::fold(choices[0].events), choices[0].generation.usage()));
  }
  http::Response error(const ApiError& error) override { return error_response(error); }

 private:
  static void write(const StreamEvent& event, std::string& out) {
    append_event(out, event.name, json::dump(event.data));
  }

  const MessageAnswer answer_;
  const Usage prompt_usage_;
  MessageStream stream_;
};

std::unique_ptr<http::Exchange> start_message(Service& service, const http::Request& request,
                                              const http::Wake& wake) {
  const openai::ChatRequest chat =
      message_request_from_json(json::parse(request.body), service.options().chat, true);
  const std::string& model = service.model_name(chat.model);
  ChatRun run = run_chat(service, chat, request.id, wake);
  auto format = std::make_unique<MessageFormat>(MessageAnswer{random_id("msg_"), model},
                                                run.choices[0].generation.usage());
  return std::make_unique<AnswerExchange>(std::move(run.choices), std::move(format),
                                          chat.generation.stream, request.id);
}

std::unique_ptr<http::Exchange> count_tokens(const Service& service, const http::Request& request) {
  const openai::ChatRequest chat =
      message_request_from_json(json::parse(request.body), service.options().chat, false);
  service.model_name(chat.model);
  const auto ids = text::encode_ids(text::encode_chat(chat.conversation), service.tokenizer(),
                                    service.options().client_markup);
  http::Response response;
  response.body = "{\"input_tokens\":" + std::to_string(ids.size()) + "}";
  return http::ready(std::move(response));
}

}  // namespace

void add_endpoints(http::Router& router, Service& service) {
  router.add("POST", "/v1/messages", [&service](http::Request&& request, http::Wake&& wake) {
    return start_message(service, request, wake);
  });
  router.add(
      "POST", "/v1/messages/count_tokens",
      [&service](http::Request&& request, http::Wake&&) { return count_tokens(service, request); });
}

http::Response error_response(const ApiError& error) {
  http::Response response;
  response.status = error.status();
  response.body = json::dump(error_json(error));
  if (error.retry_after_seconds() > 0)
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds()));
  return response;
}

}  // namespace onecard::server::anthropic
