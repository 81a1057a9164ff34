#include "server/openai/chat_answer.h"

#include <utility>

namespace onecard::server::openai {
namespace {

using json::Value;

Value string(std::string_view text) { return Value::string(std::string(text)); }

Value envelope(const ChatAnswer& answer, std::string_view object) {
  return Value::object({{"id", string(answer.id)},
                        {"object", string(object)},
                        {"created", Value::integer(answer.created)},
                        {"model", string(answer.model)}});
}

void set_reasoning(const ChatAnswer& answer, const Value& reasoning, Value& message) {
  message.set("reasoning_content", reasoning);
  if (answer.both_reasoning_fields) message.set("reasoning", reasoning);
}

Value function_call(std::string_view id, std::string_view name, std::string_view arguments) {
  return Value::object(
      {{"id", string(id)},
       {"type", string("function")},
       {"function", Value::object({{"name", string(name)}, {"arguments", string(arguments)}})}});
}

Value stop_reason(const std::string& stop_string, std::optional<int32_t> stop_token_id) {
  if (!stop_string.empty()) return string(stop_string);
  if (stop_token_id) return Value::integer(*stop_token_id);
  return {};
}

// The delta of an event; null for an event that gets no chunk.
struct DeltaOf {
  const ChatAnswer& answer;
  const MakeId& make_id;

  Value operator()(const text::ReasoningDelta& delta) const {
    if (!answer.include_reasoning) return {};
    Value value = Value::object();
    set_reasoning(answer, string(delta.text), value);
    return value;
  }
  Value operator()(const text::ContentDelta& delta) const {
    return Value::object({{"content", string(delta.text)}});
  }
  Value operator()(const text::CallStart& start) const {
    Value call = Value::object({{"index", Value::integer(start.index)}});
    const Value rest = function_call(make_id("call_"), start.name, "");
    for (const json::Member& member : rest.members()) call.set(member.first, member.second);
    return Value::object({{"tool_calls", Value::array({std::move(call)})}});
  }
  Value operator()(const text::ArgumentsDelta& delta) const {
    Value call = Value::object({{"index", Value::integer(delta.index)},
                                {"function", Value::object({{"arguments", string(delta.text)}})}});
    return Value::object({{"tool_calls", Value::array({std::move(call)})}});
  }
  Value operator()(const text::CallEnd&) const { return {}; }
  Value operator()(const text::MessageEnd&) const { return Value::object(); }
};

}  // namespace

ChatChoiceStream::ChatChoiceStream(ChatAnswer answer, int choice_idx, MakeId make_id)
    : answer_(std::move(answer)), choice_idx_(choice_idx), make_id_(std::move(make_id)) {}

Value ChatChoiceStream::first_chunk() const {
  return wrap(Value::object({{"role", string("assistant")}, {"content", string("")}}), {});
}

std::optional<Value> ChatChoiceStream::chunk(const text::MessageEvent& event,
                                             std::optional<int32_t> stop_token_id) {
  Value delta = std::visit(DeltaOf{answer_, make_id_}, event);
  if (delta.is_null()) return std::nullopt;
  const auto* end = std::get_if<text::MessageEnd>(&event);
  if (!end) return wrap(std::move(delta), {});
  Value chunk = wrap(std::move(delta), string(finish_reason_name(end->reason)));
  Value reason = stop_reason(end->stop_string, stop_token_id);
  if (!reason.is_null())
    chunk.members().back().second.items()[0].set("stop_reason", std::move(reason));
  return chunk;
}

Value ChatChoiceStream::wrap(Value delta, Value finish_reason) const {
  Value chunk = envelope(answer_, "chat.completion.chunk");
  chunk.set("choices",
            Value::array({Value::object({{"index", Value::integer(choice_idx_)},
                                         {"delta", std::move(delta)},
                                         {"finish_reason", std::move(finish_reason)}})}));
  return chunk;
}

Value usage_chunk(const ChatAnswer& answer, const Usage& usage) {
  Value chunk = envelope(answer, "chat.completion.chunk");
  chunk.set("choices", Value::array());
  chunk.set("usage", usage_json(usage));
  return chunk;
}

Value usage_json(const Usage& usage) {
  return Value::object(
      {{"prompt_tokens", Value::integer(usage.prompt_tokens)},
       {"completion_tokens", Value::integer(usage.completion_tokens)},
       {"total_tokens", Value::integer(usage.prompt_tokens + usage.completion_tokens)},
       {"prompt_tokens_details",
        Value::object({{"cached_tokens", Value::integer(usage.cached_tokens)}})},
       {"completion_tokens_details",
        Value::object({{"reasoning_tokens", Value::integer(usage.reasoning_tokens)}})}});
}

Value chat_choice(const ChatAnswer& answer, int choice_idx, const text::ParsedMessage& message,
                  Value logprobs, std::optional<int32_t> stop_token_id, const MakeId& make_id) {
  Value body =
      Value::object({{"role", string("assistant")},
                     {"content", message.content_is_null() ? Value() : string(message.content)}});
  if (answer.include_reasoning)
    set_reasoning(answer, message.reasoning.empty() ? Value() : string(message.reasoning), body);
  if (!message.calls.empty()) {
    Value calls = Value::array();
    for (const text::ParsedCall& call : message.calls)
      calls.items().push_back(function_call(make_id("call_"), call.name, call.arguments));
    body.set("tool_calls", std::move(calls));
  }
  return Value::object({{"index", Value::integer(choice_idx)},
                        {"message", std::move(body)},
                        {"logprobs", std::move(logprobs)},
                        {"finish_reason", string(finish_reason_name(message.finish_reason))},
                        {"stop_reason", stop_reason(message.stop_string, stop_token_id)}});
}

Value chat_completion(const ChatAnswer& answer, std::vector<Value> choices, const Usage& usage) {
  Value body = envelope(answer, "chat.completion");
  body.set("choices", Value::array(std::move(choices)));
  body.set("usage", usage_json(usage));
  return body;
}

}  // namespace onecard::server::openai
