#include "server/anthropic/message_answer.h"

#include <utility>

#include "base/error.h"

namespace onecard::server::anthropic {
namespace {

using json::Value;

Value string(std::string_view text) { return Value::string(std::string(text)); }

// Thinking is signed by its author's service alone; clients hand the text back as it is.
constexpr std::string_view kSignature = "unsigned";

Value usage_json(const Usage& usage) {
  return Value::object({{"input_tokens", Value::integer(usage.prompt_tokens - usage.cached_tokens)},
                        {"output_tokens", Value::integer(usage.completion_tokens)},
                        {"cache_creation_input_tokens", Value::integer(0)},
                        {"cache_read_input_tokens", Value::integer(usage.cached_tokens)}});
}

Value stop_reason(text::FinishReason reason, const std::string& stop_string) {
  if (!stop_string.empty()) return string("stop_sequence");
  switch (reason) {
    case text::FinishReason::kStop:
      return string("end_turn");
    case text::FinishReason::kLength:
      return string("max_tokens");
    case text::FinishReason::kToolCalls:
      return string("tool_use");
  }
  return {};
}

Value stop_sequence(const std::string& stop_string) {
  return stop_string.empty() ? Value() : string(stop_string);
}

Value body(const MessageAnswer& answer, Value content, Value reason, Value sequence,
           const Usage& usage) {
  return Value::object({{"id", string(answer.id)},
                        {"type", string("message")},
                        {"role", string("assistant")},
                        {"model", string(answer.model)},
                        {"content", std::move(content)},
                        {"stop_reason", std::move(reason)},
                        {"stop_sequence", std::move(sequence)},
                        {"usage", usage_json(usage)}});
}

Value thinking_block(std::string_view thinking, std::string_view signature) {
  return Value::object({{"type", string("thinking")},
                        {"thinking", string(thinking)},
                        {"signature", string(signature)}});
}

Value text_block(std::string_view text) {
  return Value::object({{"type", string("text")}, {"text", string(text)}});
}

Value tool_use_block(std::string id, std::string_view name, Value input) {
  return Value::object({{"type", string("tool_use")},
                        {"id", Value::string(std::move(id))},
                        {"name", string(name)},
                        {"input", std::move(input)}});
}

}  // namespace

MessageStream::MessageStream(MessageAnswer answer, MakeId make_id)
    : answer_(std::move(answer)), make_id_(std::move(make_id)) {}

StreamEvent MessageStream::start(const Usage& usage) const {
  Usage prompt = usage;
  prompt.completion_tokens = 0;
  return {"message_start",
          Value::object({{"type", string("message_start")},
                         {"message", body(answer_, Value::array(), {}, {}, prompt)}})};
}

void MessageStream::add(const text::MessageEvent& event, const Usage& usage,
                        std::vector<StreamEvent>& out) {
  if (const auto* reasoning = std::get_if<text::ReasoningDelta>(&event)) {
    if (block_ != Block::kThinking) open(Block::kThinking, thinking_block("", ""), out);
    delta(
        Value::object({{"type", string("thinking_delta")}, {"thinking", string(reasoning->text)}}),
        out);
  } else if (const auto* content = std::get_if<text::ContentDelta>(&event)) {
    if (block_ != Block::kText) open(Block::kText, text_block(""), out);
    delta(Value::object({{"type", string("text_delta")}, {"text", string(content->text)}}), out);
  } else if (const auto* call = std::get_if<text::CallStart>(&event)) {
    open(Block::kToolUse, tool_use_block(make_id_("toolu_"), call->name, Value::object()), out);
  } else if (const auto* arguments = std::get_if<text::ArgumentsDelta>(&event)) {
    delta(Value::object(
              {{"type", string("input_json_delta")}, {"partial_json", string(arguments->text)}}),
          out);
  } else if (const auto* end = std::get_if<text::MessageEnd>(&event)) {
    close(out);
    out.push_back(
        {"message_delta",
         Value::object(
             {{"type", string("message_delta")},
              {"delta", Value::object({{"stop_reason", stop_reason(end->reason, end->stop_string)},
                                       {"stop_sequence", stop_sequence(end->stop_string)}})},
              {"usage", usage_json(usage)}})});
    out.push_back({"message_stop", Value::object({{"type", string("message_stop")}})});
  } else {
    close(out);  // the call is complete
  }
}

void MessageStream::open(Block block, Value content, std::vector<StreamEvent>& out) {
  close(out);
  block_ = block;
  ++block_idx_;
  out.push_back({"content_block_start", Value::object({{"type", string("content_block_start")},
                                                       {"index", Value::integer(block_idx_)},
                                                       {"content_block", std::move(content)}})});
}

void MessageStream::close(std::vector<StreamEvent>& out) {
  if (block_ == Block::kNone) return;
  if (block_ == Block::kThinking)
    delta(Value::object({{"type", string("signature_delta")}, {"signature", string(kSignature)}}),
          out);
  block_ = Block::kNone;
  out.push_back({"content_block_stop", Value::object({{"type", string("content_block_stop")},
                                                      {"index", Value::integer(block_idx_)}})});
}

void MessageStream::delta(Value value, std::vector<StreamEvent>& out) const {
  out.push_back({"content_block_delta", Value::object({{"type", string("content_block_delta")},
                                                       {"index", Value::integer(block_idx_)},
                                                       {"delta", std::move(value)}})});
}

Value message_body(const MessageAnswer& answer, const text::ParsedMessage& message,
                   const Usage& usage, const MakeId& make_id) {
  Value content = Value::array();
  if (!message.reasoning.empty())
    content.items().push_back(thinking_block(message.reasoning, kSignature));
  if (!message.content.empty()) content.items().push_back(text_block(message.content));
  for (const text::ParsedCall& call : message.calls)
    if (call.complete)
      content.items().push_back(tool_use_block(make_id("toolu_"), call.name,
                                               json::parse(call.arguments, {.max_depth = 256})));
  return body(answer, std::move(content), stop_reason(message.finish_reason, message.stop_string),
              stop_sequence(message.stop_string), usage);
}

Value error_body(const std::string& type, const std::string& message) {
  return Value::object(
      {{"type", string("error")},
       {"error", Value::object({{"type", string(type)}, {"message", string(message)}})}});
}

}  // namespace onecard::server::anthropic
