#include "server/openai/response_answer.h"

#include <utility>

#include "base/error.h"

namespace onecard::server::openai {
namespace {

using json::Member;
using json::Value;

Value string(std::string_view text) { return Value::string(std::string(text)); }

Value usage_json(const Usage& usage) {
  return Value::object(
      {{"input_tokens", Value::integer(usage.prompt_tokens)},
       {"input_tokens_details",
        Value::object({{"cached_tokens", Value::integer(usage.cached_tokens)}})},
       {"output_tokens", Value::integer(usage.completion_tokens)},
       {"output_tokens_details",
        Value::object({{"reasoning_tokens", Value::integer(usage.reasoning_tokens)}})},
       {"total_tokens", Value::integer(usage.prompt_tokens + usage.completion_tokens)}});
}

// The text that a custom tool gets: its one argument, or whatever the model wrote instead.
std::string custom_input(const std::string& arguments) {
  try {
    const Value object = json::parse(arguments, {.max_depth = 256});
    const Value* input = object.find("input");
    if (input && input->is_string()) return input->as_string();
  } catch (const Error&) {  // the token limit has cut it
  }
  return arguments;
}

Value text_part(bool reasoning, std::string_view text) {
  Value part = Value::object(
      {{"type", string(reasoning ? "reasoning_text" : "output_text")}, {"text", string(text)}});
  if (!reasoning) part.set("annotations", Value::array());
  return part;
}

}  // namespace

ResponseStream::ResponseStream(ResponseAnswer answer, MakeId make_id)
    : answer_(std::move(answer)), make_id_(std::move(make_id)) {
  response_ = Value::object({{"id", string(answer_.id)},
                             {"object", string("response")},
                             {"created_at", Value::integer(answer_.created)},
                             {"status", string("in_progress")},
                             {"error", Value()},
                             {"incomplete_details", Value()},
                             {"model", string(answer_.model)}});
  for (const Member& member : answer_.echo) response_.set(member.first, member.second);
  response_.set("output", Value::array());
  response_.set("usage", Value());
}

void ResponseStream::start(std::vector<Value>& out) {
  emit_response("response.created", out);
  emit_response("response.in_progress", out);
}

void ResponseStream::add(const text::MessageEvent& event, const Usage& usage,
                         std::vector<Value>& out) {
  if (const auto* reasoning = std::get_if<text::ReasoningDelta>(&event)) {
    add_text(Item::kReasoning, reasoning->text, out);
  } else if (const auto* content = std::get_if<text::ContentDelta>(&event)) {
    add_text(Item::kMessage, content->text, out);
  } else if (const auto* call = std::get_if<text::CallStart>(&event)) {
    close(true, out);
    open_call(call->name, out);
  } else if (const auto* arguments = std::get_if<text::ArgumentsDelta>(&event)) {
    text_ += arguments->text;
    if (kind_ == Item::kCustomCall) return;  // its text is known when the arguments are whole
    std::vector<Member> members = place();
    members.emplace_back("delta", string(arguments->text));
    emit("response.function_call_arguments.delta", std::move(members), out);
  } else if (const auto* end = std::get_if<text::MessageEnd>(&event)) {
    const bool cut = end->reason == text::FinishReason::kLength;
    close(!cut, out);
    response_.set("status", string(cut ? "incomplete" : "completed"));
    if (cut)
      response_.set("incomplete_details", Value::object({{"reason", string("max_output_tokens")}}));
    response_.set("usage", usage_json(usage));
    emit_response(cut ? "response.incomplete" : "response.completed", out);
  } else {
    close(true, out);  // the call is complete
  }
}

void ResponseStream::fail(const std::string& code, const std::string& message,
                          std::vector<Value>& out) {
  response_.set("status", string("failed"));
  response_.set("error", Value::object({{"code", string(code)}, {"message", string(message)}}));
  emit_response("response.failed", out);
}

void ResponseStream::emit(const char* type, std::vector<Member> members, std::vector<Value>& out) {
  Value event = Value::object(
      {{"type", string(type)}, {"sequence_number", Value::integer(sequence_number_++)}});
  for (Member& member : members) event.members().push_back(std::move(member));
  out.push_back(std::move(event));
}

void ResponseStream::emit_response(const char* type, std::vector<Value>& out) {
  emit(type, {{"response", response_}}, out);
}

// Where deltas of the open item belong.
std::vector<Member> ResponseStream::place() const {
  std::vector<Member> members = {
      {"item_id", *item_.find("id")},
      {"output_index", Value::integer(int64_t(response_.find("output")->items().size()))}};
  if (kind_ == Item::kReasoning || kind_ == Item::kMessage)
    members.emplace_back("content_index", Value::integer(0));
  return members;
}

void ResponseStream::open(Item kind, Value item, std::vector<Value>& out) {
  kind_ = kind;
  item_ = std::move(item);
  text_.clear();
  item_.set("status", string("in_progress"));
  emit("response.output_item.added",
       {{"output_index", Value::integer(int64_t(response_.find("output")->items().size()))},
        {"item", item_}},
       out);
}

void ResponseStream::open_text(Item kind, std::vector<Value>& out) {
  const bool reasoning = kind == Item::kReasoning;
  Value item = Value::object({{"id", Value::string(make_id_(reasoning ? "rs_" : "msg_"))},
                              {"type", string(reasoning ? "reasoning" : "message")}});
  if (reasoning)
    item.set("summary", Value::array());
  else
    item.set("role", string("assistant"));
  item.set("content", Value::array());
  open(kind, std::move(item), out);
  std::vector<Member> members = place();
  members.emplace_back("part", text_part(reasoning, ""));
  emit("response.content_part.added", std::move(members), out);
}

void ResponseStream::open_call(const std::string& name, std::vector<Value>& out) {
  const bool custom = answer_.custom_tools.count(name) > 0;
  Value item = Value::object({{"id", Value::string(make_id_(custom ? "ctc_" : "fc_"))},
                              {"type", string(custom ? "custom_tool_call" : "function_call")},
                              {"call_id", Value::string(make_id_("call_"))}});
  const size_t colons = name.find("::");
  if (colons != name.npos) item.set("namespace", string(name.substr(0, colons)));
  item.set("name", string(colons == name.npos ? name : name.substr(colons + 2)));
  item.set(custom ? "input" : "arguments", string(""));
  open(custom ? Item::kCustomCall : Item::kFunctionCall, std::move(item), out);
}

void ResponseStream::add_text(Item kind, const std::string& text, std::vector<Value>& out) {
  if (kind_ != kind) {
    close(true, out);
    open_text(kind, out);
  }
  text_ += text;
  std::vector<Member> members = place();
  members.emplace_back("delta", string(text));
  emit(kind == Item::kReasoning ? "response.reasoning_text.delta" : "response.output_text.delta",
       std::move(members), out);
}

void ResponseStream::close(bool complete, std::vector<Value>& out) {
  switch (kind_) {
    case Item::kNone:
      return;
    case Item::kReasoning:
    case Item::kMessage: {
      const bool reasoning = kind_ == Item::kReasoning;
      std::vector<Member> members = place();
      members.emplace_back("text", string(text_));
      emit(reasoning ? "response.reasoning_text.done" : "response.output_text.done",
           std::move(members), out);
      Value part = text_part(reasoning, text_);
      members = place();
      members.emplace_back("part", part);
      emit("response.content_part.done", std::move(members), out);
      item_.set("content", Value::array({std::move(part)}));
      break;
    }
    case Item::kFunctionCall: {
      std::vector<Member> members = place();
      members.emplace_back("arguments", string(text_));
      emit("response.function_call_arguments.done", std::move(members), out);
      item_.set("arguments", string(text_));
      break;
    }
    case Item::kCustomCall: {
      const std::string input = custom_input(text_);
      std::vector<Member> members = place();
      members.emplace_back("delta", string(input));
      emit("response.custom_tool_call_input.delta", std::move(members), out);
      members = place();
      members.emplace_back("input", string(input));
      emit("response.custom_tool_call_input.done", std::move(members), out);
      item_.set("input", string(input));
      break;
    }
  }
  item_.set("status", string(complete ? "completed" : "incomplete"));
  Value* output = nullptr;
  for (Member& member : response_.members())
    if (member.first == "output") output = &member.second;
  emit("response.output_item.done",
       {{"output_index", Value::integer(int64_t(output->items().size()))}, {"item", item_}}, out);
  output->items().push_back(std::move(item_));
  kind_ = Item::kNone;
}

Value response_body(const ResponseAnswer& answer, const text::MessageEvents& events,
                    const Usage& usage, const MakeId& make_id) {
  ResponseStream stream(answer, make_id);
  std::vector<Value> ignored;
  for (const text::MessageEvent& event : events) stream.add(event, usage, ignored);
  return stream.response();
}

}  // namespace onecard::server::openai
