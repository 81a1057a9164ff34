#include "client/chat_client.h"

#include <utility>

#include "base/error.h"
#include "client/sse_parser.h"

namespace onecard::client {
namespace {

using json::Value;

const Value* member(const Value* object, std::string_view key) {
  const Value* value = object == nullptr ? nullptr : object->find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string text_member(const Value* object, std::string_view key) {
  const Value* value = member(object, key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

int64_t int_member(const Value* object, std::string_view key) {
  const Value* value = member(object, key);
  return value != nullptr && value->is_number() ? value->as_int64().value_or(0) : 0;
}

// The server's own words, from the body of an error.
std::string error_message(const std::string& body) {
  try {
    const Value value = json::parse(body);
    const std::string message = text_member(member(&value, "error"), "message");
    if (!message.empty()) return message;
  } catch (const Error&) {  // not JSON: shown as it is
  }
  return body.substr(0, 500);
}

void take_calls(const Value& calls, ChatAnswer& answer, ChatPiece& piece) {
  for (const Value& call : calls.items()) {
    const auto index = size_t(int_member(&call, "index"));
    if (index > answer.calls.size()) continue;
    if (index == answer.calls.size()) answer.calls.emplace_back();
    ChatCall& known = answer.calls[index];
    if (const std::string id = text_member(&call, "id"); !id.empty()) known.id = id;
    const Value* function = member(&call, "function");
    if (const std::string name = text_member(function, "name"); !name.empty())
      piece.call_name = known.name = name;
    const std::string arguments = text_member(function, "arguments");
    known.arguments += arguments;
    piece.call_arguments += arguments;
  }
}

}  // namespace

std::vector<std::string> ChatClient::models() {
  const Http::Answer answer = http_.get("/v1/models");
  if (answer.status != 200)
    throw Error(ErrorCode::kInvalidArgument, "the server says " + std::to_string(answer.status) +
                                                 ": " + error_message(answer.body));
  const Value body = json::parse(answer.body);
  std::vector<std::string> names;
  if (const Value* data = member(&body, "data"); data != nullptr && data->is_array())
    for (const Value& model : data->items()) names.push_back(text_member(&model, "id"));
  return names;
}

ChatAnswer ChatClient::ask(const Value& messages, const std::vector<json::Member>& extra,
                           const std::function<void(const ChatPiece&)>& on_piece,
                           const std::function<bool()>& keep_going) {
  Value body =
      Value::object({{"messages", messages},
                     {"stream", Value::boolean(true)},
                     {"stream_options", Value::object({{"include_usage", Value::boolean(true)}})}});
  for (const json::Member& field : extra) body.set(field.first, field.second);

  ChatAnswer answer;
  std::string failure;
  bool complete = false;
  SseParser parser([&](const SseEvent& event) {
    if (event.data == "[DONE]") {
      complete = true;
      return;
    }
    const Value chunk = json::parse(event.data);
    if (member(&chunk, "error") != nullptr) {
      failure = text_member(member(&chunk, "error"), "message");
      return;
    }
    if (const Value* usage = member(&chunk, "usage")) {
      answer.prompt_tokens = int_member(usage, "prompt_tokens");
      answer.completion_tokens = int_member(usage, "completion_tokens");
      answer.cached_tokens = int_member(member(usage, "prompt_tokens_details"), "cached_tokens");
    }
    const Value* choices = member(&chunk, "choices");
    if (choices == nullptr || !choices->is_array() || choices->items().empty()) return;
    const Value& choice = choices->items()[0];
    const Value* delta = member(&choice, "delta");
    ChatPiece piece;
    piece.reasoning = text_member(delta, "reasoning_content");
    if (piece.reasoning.empty()) piece.reasoning = text_member(delta, "reasoning");
    piece.content = text_member(delta, "content");
    if (const Value* calls = member(delta, "tool_calls"); calls != nullptr && calls->is_array())
      take_calls(*calls, answer, piece);
    answer.reasoning += piece.reasoning;
    answer.content += piece.content;
    if (const std::string reason = text_member(&choice, "finish_reason"); !reason.empty())
      answer.finish_reason = reason;
    on_piece(piece);
  });

  const Http::Answer response = http_.post_stream(
      "/v1/chat/completions", json::dump(body),
      [&](std::string_view bytes) {
        parser.feed(bytes);
        return keep_going();
      },
      keep_going);
  if (response.status != 200 && keep_going())
    throw Error(ErrorCode::kInvalidArgument, "the server says " + std::to_string(response.status) +
                                                 ": " + error_message(response.body));
  if (!failure.empty()) throw Error(ErrorCode::kIo, "the server failed: " + failure);
  if (!complete && keep_going())
    throw Error(ErrorCode::kIo, "the server broke off in the middle of its answer");
  return answer;
}

Value history_message(const ChatAnswer& answer) {
  Value message = Value::object(
      {{"role", Value::string("assistant")}, {"content", Value::string(answer.content)}});
  if (!answer.reasoning.empty()) message.set("reasoning_content", Value::string(answer.reasoning));
  return message;
}

}  // namespace onecard::client
