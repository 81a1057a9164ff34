#include "server/anthropic/message_request.h"

#include <algorithm>
#include <utility>

#include "server/chat_fields.h"
#include "server/fields.h"
#include "text/python_json.h"

namespace onecard::server::anthropic {
namespace {

using text::ContentPart;
using text::Message;
using text::Role;

ContentPart image_part(const Fields& block, const text::ChatJsonOptions& options) {
  check_images_allowed(block, options);
  const json::Value* source = block.object("source");
  if (source == nullptr) block.refuse("source", "is missing");
  const Fields fields(*source, block.name("source"));
  const std::string type = required_string(fields, "type");
  if (type == "url") return {ContentPart::Kind::kImage, required_string(fields, "url")};
  if (type != "base64") fields.refuse("type", "has to be base64 or url");
  return {ContentPart::Kind::kImage, "data:" + required_string(fields, "media_type") + ";base64," +
                                         required_string(fields, "data")};
}

// A string, or blocks of text and images.
std::vector<ContentPart> plain_content(const Fields& fields, std::string_view key,
                                       const text::ChatJsonOptions& options) {
  const json::Value* value = fields.find(key);
  if (value == nullptr) return {};
  if (value->is_string()) return {text_part(value->as_string())};
  if (!value->is_array()) fields.refuse(key, "has to be a string or an array of blocks");
  std::vector<ContentPart> parts;
  for (const json::Value& item : value->items()) {
    const Fields block(item, fields.name(at(key, parts.size())));
    const std::string type = required_string(block, "type");
    if (type == "text")
      parts.push_back(text_part(required_string(block, "text")));
    else if (type == "image")
      parts.push_back(image_part(block, options));
    else
      block.refuse("type", "has to be text or image");
  }
  return parts;
}

// Results of tools become messages of their own, in their place among the others.
void add_user_message(const Fields& message, const text::ChatJsonOptions& options,
                      std::vector<Message>& out) {
  const json::Value* content = message.find("content");
  if (content == nullptr) message.refuse("content", "is missing");
  if (!content->is_array()) {
    out.push_back(message_of(Role::kUser, plain_content(message, "content", options)));
    return;
  }
  if (content->items().empty()) message.refuse("content", "must not be empty");
  bool open = false;  // the last message is of this one's text
  for (size_t i = 0; i < content->items().size(); ++i) {
    const Fields block(content->items()[i], message.name(at("content", i)));
    const std::string type = required_string(block, "type");
    if (type == "tool_result") {
      out.push_back(message_of(Role::kTool, plain_content(block, "content", options)));
      out.back().tool_call_id = required_string(block, "tool_use_id");
      open = false;
      continue;
    }
    if (!open) out.push_back(message_of(Role::kUser));
    open = true;
    if (type == "text")
      out.back().content.push_back(text_part(required_string(block, "text")));
    else if (type == "image")
      out.back().content.push_back(image_part(block, options));
    else
      block.refuse("type", "has to be text, image or tool_result");
  }
}

void add_assistant_message(const Fields& message, std::vector<Message>& out) {
  Message assistant = message_of(Role::kAssistant);
  const json::Value* content = message.find("content");
  if (content == nullptr) message.refuse("content", "is missing");
  if (!content->is_array()) {
    assistant.content = plain_content(message, "content", {});
    out.push_back(std::move(assistant));
    return;
  }
  for (size_t i = 0; i < content->items().size(); ++i) {
    const Fields block(content->items()[i], message.name(at("content", i)));
    const std::string type = required_string(block, "type");
    if (type == "text") {
      assistant.content.push_back(text_part(required_string(block, "text")));
    } else if (type == "thinking") {
      if (!assistant.reasoning.empty()) assistant.reasoning += "\n\n";
      assistant.reasoning += required_string(block, "thinking");
    } else if (type == "tool_use") {
      const json::Value* input = block.object("input");
      assistant.tool_calls.push_back({required_string(block, "id"), required_string(block, "name"),
                                      input == nullptr ? "{}" : text::python_dumps(*input)});
    } else if (type != "redacted_thinking") {
      block.refuse("type", "has to be text, thinking, redacted_thinking or tool_use");
    }
  }
  out.push_back(std::move(assistant));
}

// Parts that begin like this change with every request and say nothing to the model; kept, they
// would make every prompt a new one.
constexpr std::string_view kClientHeader = "x-anthropic-";

void add_system(const Fields& fields, std::vector<Message>& out) {
  std::vector<ContentPart> parts = plain_content(fields, "system", {});
  std::erase_if(parts,
                [](const ContentPart& part) { return part.text.starts_with(kClientHeader); });
  if (!parts.empty()) out.push_back(message_of(Role::kSystem, std::move(parts)));
}

std::vector<text::ToolDefinition> read_tools(const Fields& fields) {
  std::vector<text::ToolDefinition> tools;
  const json::Value* list = fields.array("tools");
  if (list == nullptr) return tools;
  for (const json::Value& item : list->items()) {
    const Fields tool(item, fields.name(at("tools", tools.size())));
    if (const std::string type = tool.string("type").value_or("custom"); type != "custom")
      tool.refuse("type",
                  "tools that run on the server are not supported, and \"" + type + "\" is one");
    tools.push_back(flat_function_tool(tool, "input_schema", tools.size()));
  }
  return tools;
}

void read_tool_choice(const Fields& fields, openai::ChatRequest& request) {
  const json::Value* value = fields.object("tool_choice");
  if (value == nullptr) return;
  const Fields choice(*value, fields.name("tool_choice"));
  const std::string type = required_string(choice, "type");
  text::ToolChoice& out = request.conversation.tool_choice;
  if (type == "any")
    out.kind = text::ToolChoice::Kind::kRequired;
  else if (type == "none")
    out.kind = text::ToolChoice::Kind::kNone;
  else if (type == "tool")
    out = {text::ToolChoice::Kind::kNamed, required_string(choice, "name")};
  else if (type != "auto")
    choice.refuse("type", "has to be auto, any, tool or none");
  request.parallel_tool_calls = !choice.boolean("disable_parallel_tool_use").value_or(false);
}

void read_thinking(const Fields& fields, const text::ChatJsonOptions& options,
                   openai::ChatRequest& request) {
  text::ThinkingRequest wanted;
  if (const json::Value* value = fields.object("thinking")) {
    const Fields thinking(*value, fields.name("thinking"));
    const std::string type = required_string(thinking, "type");
    if (type != "enabled" && type != "adaptive" && type != "disabled")
      thinking.refuse("type", "has to be enabled, adaptive or disabled");
    wanted.thinking = type != "disabled";
    request.thinking_token_budget = thinking.limit("budget_tokens", 0);
  }
  if (const json::Value* value = fields.object("output_config"))
    if (const json::Value* effort = Fields(*value, fields.name("output_config")).find("effort"))
      wanted.effort =
          text::effort_from_json(*effort, options.thinking.names, "output_config.effort");
  text::resolve_thinking(wanted, options.thinking, request.conversation);
}

}  // namespace

openai::ChatRequest message_request_from_json(const json::Value& body,
                                              const text::ChatJsonOptions& options,
                                              bool needs_max_tokens) {
  const Fields fields(body);
  openai::ChatRequest request;
  request.model = fields.string("model").value_or("");

  const json::Value* messages = fields.array("messages");
  if (messages == nullptr || messages->items().empty())
    fields.refuse("messages", "has to hold at least one");
  std::vector<Message>& out = request.conversation.messages;
  add_system(fields, out);
  for (size_t i = 0; i < messages->items().size(); ++i) {
    const Fields message(messages->items()[i], fields.name(at("messages", i)));
    const std::string role = required_string(message, "role");
    if (role == "user")
      add_user_message(message, options, out);
    else if (role == "assistant")
      add_assistant_message(message, out);
    else if (role == "system")
      out.push_back(message_of(Role::kSystem, plain_content(message, "content", {})));
    else
      message.refuse("role", "has to be user, assistant or system");
  }
  // An answer that was begun goes on.
  request.conversation.continue_final_message = out.back().role == Role::kAssistant;
  request.conversation.tools = read_tools(fields);
  read_tool_choice(fields, request);
  read_thinking(fields, options, request);

  openai::GenerationFields& generation = request.generation;
  generation.max_tokens = fields.limit("max_tokens", 1);
  if (!generation.max_tokens && needs_max_tokens) fields.refuse("max_tokens", "is missing");
  generation.stop = openai::read_stop_strings(fields, "stop_sequences");
  openai::read_temperature_and_top_p(fields, generation.sampling);
  generation.sampling.top_k = fields.integer("top_k", 0).value_or(0);
  generation.stream = fields.boolean("stream").value_or(false);
  return request;
}

}  // namespace onecard::server::anthropic
