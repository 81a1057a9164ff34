#include "client/chat_client.h"

#include <utility>

#include "base/error.h"
#include "client/sse_parser.h"

namespace onecard::client {
namespace {

using json::Value;

constexpr const char* kChatPath = "/v1/chat/completions";

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

const std::vector<Value>& items_member(const Value* object, std::string_view key) {
  static const std::vector<Value> kNone;
  const Value* value = member(object, key);
  return value != nullptr && value->is_array() ? value->items() : kNone;
}

Value parse_answer(std::string_view text) {
  try {
    return json::parse(text);
  } catch (const Error& error) {
    throw Error(ErrorCode::kIo, std::string("the server's answer is no JSON: ") + error.what());
  }
}

// Throws unless the server answered 200; with its own words, where the body has them.
void require_success(const Http::Answer& answer) {
  if (answer.status == 200) return;
  std::string message = answer.body.substr(0, 500);
  try {
    const Value value = json::parse(answer.body);
    if (const std::string text = text_member(member(&value, "error"), "message"); !text.empty())
      message = text;
  } catch (const Error&) {  // no JSON: shown as it is
  }
  throw Error(ErrorCode::kInvalidArgument,
              "the server says " + std::to_string(answer.status) + ": " + message);
}

void take_usage(const Value* usage, ChatAnswer& answer) {
  if (usage == nullptr) return;
  answer.prompt_tokens = int_member(usage, "prompt_tokens");
  answer.completion_tokens = int_member(usage, "completion_tokens");
  answer.cached_tokens = int_member(member(usage, "prompt_tokens_details"), "cached_tokens");
}

// A whole message or a delta of one; whole calls have no index, and follow one another.
ChatPiece take_message(const Value* message, ChatAnswer& answer) {
  ChatPiece piece;
  piece.reasoning = text_member(message, "reasoning_content");
  if (piece.reasoning.empty()) piece.reasoning = text_member(message, "reasoning");
  piece.content = text_member(message, "content");
  answer.reasoning += piece.reasoning;
  answer.content += piece.content;
  for (const Value& call : items_member(message, "tool_calls")) {
    const size_t index = member(&call, "index") == nullptr ? answer.calls.size()
                                                           : size_t(int_member(&call, "index"));
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
  return piece;
}

Value request_body(const Value& messages, const std::vector<json::Member>& extra) {
  Value body = Value::object({{"messages", messages}});
  for (const json::Member& field : extra) body.set(field.first, field.second);
  return body;
}

}  // namespace

std::vector<ServedModel> ChatClient::models() {
  const Http::Answer answer = http_.get("/v1/models");
  require_success(answer);
  const Value body = parse_answer(answer.body);
  std::vector<ServedModel> models;
  for (const Value& model : items_member(&body, "data"))
    models.push_back({text_member(&model, "id"), int_member(&model, "max_model_len")});
  return models;
}

ChatAnswer ChatClient::ask(const Value& messages, const std::vector<json::Member>& extra) {
  const Http::Answer response = http_.post(kChatPath, json::dump(request_body(messages, extra)));
  require_success(response);
  const Value body = parse_answer(response.body);
  const std::vector<Value>& choices = items_member(&body, "choices");
  if (choices.empty()) throw Error(ErrorCode::kIo, "the server's answer has no choices");
  ChatAnswer answer;
  take_message(member(&choices[0], "message"), answer);
  answer.finish_reason = text_member(&choices[0], "finish_reason");
  take_usage(member(&body, "usage"), answer);
  return answer;
}

ChatAnswer ChatClient::stream(const Value& messages, const std::vector<json::Member>& extra,
                              const std::function<void(const ChatPiece&)>& on_piece,
                              const std::function<bool()>& keep_going) {
  Value body = request_body(messages, extra);
  body.set("stream", Value::boolean(true));
  body.set("stream_options", Value::object({{"include_usage", Value::boolean(true)}}));

  ChatAnswer answer;
  std::string failure;
  bool complete = false;
  SseParser parser([&](const SseEvent& event) {
    if (event.data == "[DONE]") {
      complete = true;
      return;
    }
    const Value chunk = parse_answer(event.data);
    if (const Value* error = member(&chunk, "error")) {
      failure = text_member(error, "message");
      if (failure.empty()) failure = json::dump(*error);
      return;
    }
    take_usage(member(&chunk, "usage"), answer);
    const std::vector<Value>& choices = items_member(&chunk, "choices");
    if (choices.empty()) return;
    const ChatPiece piece = take_message(member(&choices[0], "delta"), answer);
    if (const std::string reason = text_member(&choices[0], "finish_reason"); !reason.empty())
      answer.finish_reason = reason;
    on_piece(piece);
  });

  const Http::Answer response = http_.post_stream(
      kChatPath, json::dump(body),
      [&](std::string_view bytes) {
        parser.feed(bytes);
        return keep_going();
      },
      keep_going);
  if (!keep_going()) return answer;
  require_success(response);
  if (!failure.empty()) throw Error(ErrorCode::kIo, "the server failed: " + failure);
  if (!complete) throw Error(ErrorCode::kIo, "the server broke off in the middle of its answer");
  return answer;
}

std::optional<int64_t> ChatClient::count_tokens(const std::string& text) {
  // Each kind of server has its own; the first that answers is believed.
  constexpr std::pair<const char*, const char*> kWays[] = {{"/v1/token/encode", "text"},
                                                           {"/tokenize", "prompt"},
                                                           {"/v1/tokenize", "prompt"},
                                                           {"/tokenize", "content"}};
  for (const auto& [path, field] : kWays) {
    const Value body = Value::object({{field, Value::string(text)}});
    const Http::Answer response = http_.post(path, json::dump(body));
    if (response.status != 200) continue;
    const Value answer = parse_answer(response.body);
    if (member(&answer, "count") != nullptr) return int_member(&answer, "count");
    if (member(&answer, "tokens") != nullptr)
      return int64_t(items_member(&answer, "tokens").size());
  }
  return std::nullopt;
}

Value history_message(const ChatAnswer& answer) {
  Value message = text_message("assistant", answer.content);
  if (!answer.reasoning.empty()) message.set("reasoning_content", Value::string(answer.reasoning));
  if (answer.calls.empty()) return message;
  Value calls = Value::array();
  for (const ChatCall& call : answer.calls)
    calls.items().push_back(Value::object(
        {{"id", Value::string(call.id)},
         {"type", Value::string("function")},
         {"function", Value::object({{"name", Value::string(call.name)},
                                     {"arguments", Value::string(call.arguments)}})}}));
  message.set("tool_calls", std::move(calls));
  return message;
}

Value text_message(const std::string& role, const std::string& content) {
  return Value::object({{"role", Value::string(role)}, {"content", Value::string(content)}});
}

Value tool_message(const std::string& call_id, const std::string& content) {
  Value message = text_message("tool", content);
  message.set("tool_call_id", Value::string(call_id));
  return message;
}

}  // namespace onecard::client
