#include "server/openai/responses.h"

#include <utility>

#include "server/answer_exchange.h"
#include "server/chat_run.h"
#include "server/openai/error_body.h"
#include "server/openai/response_answer.h"
#include "server/openai/response_request.h"

namespace onecard::server::openai {
namespace {

class ResponseFormat final : public AnswerFormat {
 public:
  explicit ResponseFormat(ResponseAnswer answer) : answer_(answer), stream_(std::move(answer)) {}

  void begin(std::string& out) override {
    std::vector<json::Value> events;
    stream_.start(events);
    write(events, out);
  }
  void add(size_t, Choice& choice, const text::MessageEvent& event, std::string& out) override {
    std::vector<json::Value> events;
    stream_.add(event, choice.generation.usage(), events);
    write(events, out);
  }
  void end(const std::vector<Choice>&, std::string&) override {}
  void fail(const ApiError& error, std::string& out) override {
    std::vector<json::Value> events;
    stream_.fail(error.code().empty() ? "server_error" : error.code(), error.what(), events);
    write(events, out);
  }
  std::string whole(std::vector<Choice>& choices) override {
    return json::dump(response_body(answer_, choices[0].events, choices[0].generation.usage()));
  }
  http::Response error(const ApiError& error) override { return error_response(error); }

 private:
  static void write(const std::vector<json::Value>& events, std::string& out) {
    for (const json::Value& event : events)
      append_event(out, event.find("type")->as_string(), json::dump(event));
  }

  const ResponseAnswer answer_;
  ResponseStream stream_;
};

}  // namespace

std::unique_ptr<http::Exchange> start_response(Service& service, const http::Request& request,
                                               const http::Wake& wake) {
  ResponseRequest parsed =
      response_request_from_json(json::parse(request.body), service.options().chat);
  ResponseAnswer answer;
  answer.id = random_id("resp_");
  answer.model = service.model_name(parsed.chat.model);
  answer.created = service.now();
  answer.custom_tools = std::move(parsed.custom_tools);
  answer.echo = std::move(parsed.echo);
  ChatRun run = run_chat(service, parsed.chat, request.id, wake);
  auto format = std::make_unique<ResponseFormat>(std::move(answer));
  return std::make_unique<AnswerExchange>(std::move(run.choices), std::move(format),
                                          parsed.chat.generation.stream, request.id);
}

}  // namespace onecard::server::openai
