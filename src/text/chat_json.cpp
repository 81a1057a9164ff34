#include "text/chat_json.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "text/python_json.h"

namespace onecard::text {
namespace {

[[noreturn]] void refuse(const std::string& parameter, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, parameter + ": " + what);
}

// The member, or null when it is absent or null: clients send both for "not given".
const json::Value* given(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const std::string& string_of(const json::Value& value, const std::string& parameter) {
  if (!value.is_string()) refuse(parameter, "has to be a string");
  return value.as_string();
}

std::string string_member(const json::Value& object, std::string_view key,
                          const std::string& path) {
  const json::Value* value = given(object, key);
  return value == nullptr ? std::string() : string_of(*value, path + "." + std::string(key));
}

std::optional<bool> bool_member(const json::Value& object, std::string_view key,
                                const std::string& prefix) {
  const json::Value* value = given(object, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_bool()) refuse(prefix + std::string(key), "has to be true or false");
  return value->as_bool();
}

const json::Value* object_member(const json::Value& object, std::string_view key,
                                 const std::string& prefix) {
  const json::Value* value = given(object, key);
  if (value != nullptr && !value->is_object())
    refuse(prefix + std::string(key), "has to be an object");
  return value;
}

const json::Value* array_member(const json::Value& object, std::string_view key,
                                const std::string& prefix) {
  const json::Value* value = given(object, key);
  if (value != nullptr && !value->is_array())
    refuse(prefix + std::string(key), "has to be an array");
  return value;
}

// The value that `name` stands for in a table of names.
template <typename T, size_t n>
T named(const std::array<std::pair<std::string_view, T>, n>& table, const std::string& name,
        const std::string& parameter) {
  for (const auto& [known, value] : table)
    if (name == known) return value;
  std::string names;
  for (const auto& entry : table) names += (names.empty() ? "" : ", ") + std::string(entry.first);
  refuse(parameter, "has to be one of " + names);
}

constexpr std::array<std::pair<std::string_view, Role>, 6> kRoles = {
    {{"system", Role::kSystem},
     {"developer", Role::kDeveloper},
     {"user", Role::kUser},
     {"assistant", Role::kAssistant},
     {"tool", Role::kTool},
     {"latest_reminder", Role::kLatestReminder}}};

constexpr std::array<std::pair<std::string_view, Task>, 6> kTasks = {
    {{"action", Task::kAction},
     {"query", Task::kQuery},
     {"authority", Task::kAuthority},
     {"domain", Task::kDomain},
     {"title", Task::kTitle},
     {"read_url", Task::kReadUrl}}};

// image_url: {"url": ...} or a string; input_image: image_url as a string; image: either, as
// "image", "url" or "image_url".
std::string image_source(const json::Value& part, const std::string& path) {
  for (const char* key : {"image_url", "image", "url"}) {
    const json::Value* value = given(part, key);
    if (value == nullptr) continue;
    if (value->is_object()) value = given(*value, "url");
    if (value != nullptr) return string_of(*value, path + "." + key);
  }
  refuse(path, "the image has no image_url");
}

ContentPart part_from_json(const json::Value& value, const std::string& path,
                           const ChatJsonOptions& options) {
  if (!value.is_object()) refuse(path, "has to be an object");
  const std::string type = string_member(value, "type", path);
  if (type == "text" || type == "input_text" || type == "output_text") {
    const json::Value* text = given(value, "text");
    if (text == nullptr) refuse(path + ".text", "is missing");
    return {ContentPart::Kind::kText, string_of(*text, path + ".text")};
  }
  if (type == "image_url" || type == "input_image" || type == "image") {
    if (!options.allow_images)
      throw Error(ErrorCode::kUnsupported, path + ": images are not supported");
    return {ContentPart::Kind::kImage, image_source(value, path)};
  }
  refuse(path + ".type",
         "has to be one of text, input_text, output_text, image_url, input_image, image");
}

std::vector<ContentPart> content_from_json(const json::Value& value, const std::string& path,
                                           const ChatJsonOptions& options) {
  if (value.is_string()) return {{ContentPart::Kind::kText, value.as_string()}};
  if (!value.is_array()) refuse(path, "has to be a string or an array of parts");
  std::vector<ContentPart> parts;
  for (const json::Value& item : value.items())
    parts.push_back(part_from_json(item, path + "[" + std::to_string(parts.size()) + "]", options));
  return parts;
}

ToolCall call_from_json(const json::Value& value, const std::string& path) {
  if (!value.is_object()) refuse(path, "has to be an object");
  if (const std::string type = string_member(value, "type", path);
      !type.empty() && type != "function")
    refuse(path + ".type", "has to be function");
  const json::Value* function = object_member(value, "function", path + ".");
  if (function == nullptr) refuse(path + ".function", "is missing");
  ToolCall call;
  call.id = string_member(value, "id", path);
  if (given(*function, "name") == nullptr) refuse(path + ".function.name", "is missing");
  call.name = string_member(*function, "name", path + ".function");
  if (const std::string space = string_member(value, "namespace", path); !space.empty())
    call.name = space + "::" + call.name;
  // Clients that send an object in place of its text are tolerated.
  if (const json::Value* arguments = given(*function, "arguments"))
    call.arguments = arguments->is_string() ? arguments->as_string() : python_dumps(*arguments);
  return call;
}

bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

std::vector<ToolDefinition> tools_from_json(const json::Value& body) {
  std::vector<ToolDefinition> tools;
  const json::Value* list = array_member(body, "tools", "");
  if (list == nullptr) return tools;
  for (const json::Value& item : list->items()) {
    ToolDefinition tool = tool_from_json(item, tools.size());
    if (std::any_of(tools.begin(), tools.end(),
                    [&](const ToolDefinition& other) { return other.name == tool.name; }))
      refuse("tools[" + std::to_string(tools.size()) + "].function.name", "is there twice");
    tools.push_back(std::move(tool));
  }
  return tools;
}

ToolChoice tool_choice_from_json(const json::Value& body) {
  const json::Value* value = given(body, "tool_choice");
  if (value == nullptr) return {};
  constexpr std::array<std::pair<std::string_view, ToolChoice::Kind>, 3> kKinds = {
      {{"auto", ToolChoice::Kind::kAuto},
       {"none", ToolChoice::Kind::kNone},
       {"required", ToolChoice::Kind::kRequired}}};
  if (value->is_string()) return {named(kKinds, value->as_string(), "tool_choice"), ""};
  if (!value->is_object() || string_member(*value, "type", "tool_choice") != "function")
    refuse("tool_choice", "has to be auto, none, required or a function with its name");
  const json::Value* function = object_member(*value, "function", "tool_choice.");
  if (function == nullptr || given(*function, "name") == nullptr)
    refuse("tool_choice.function.name", "is missing");
  return {ToolChoice::Kind::kNamed, string_member(*function, "name", "tool_choice.function")};
}

ResponseFormat response_format_from_json(const json::Value& body) {
  ResponseFormat format;
  const json::Value* value = object_member(body, "response_format", "");
  if (value == nullptr) return format;
  constexpr std::array<std::pair<std::string_view, ResponseFormat::Kind>, 3> kKinds = {
      {{"text", ResponseFormat::Kind::kText},
       {"json_object", ResponseFormat::Kind::kJsonObject},
       {"json_schema", ResponseFormat::Kind::kJsonSchema}}};
  format.kind =
      named(kKinds, string_member(*value, "type", "response_format"), "response_format.type");
  if (format.kind != ResponseFormat::Kind::kJsonSchema) return format;
  const std::string path = "response_format.json_schema";
  const json::Value* schema = object_member(*value, "json_schema", "response_format.");
  if (schema == nullptr) refuse(path, "is missing");
  format.schema_name = string_member(*schema, "name", path);
  if (const json::Value* body_schema = object_member(*schema, "schema", path + "."))
    format.schema = *body_schema;
  else
    refuse(path + ".schema", "is missing");
  format.strict = bool_member(*schema, "strict", path + ".").value_or(false);
  return format;
}

std::optional<bool> thinking_from_json(const json::Value& body) {
  const json::Value* value = object_member(body, "thinking", "");
  if (value == nullptr) return std::nullopt;
  constexpr std::array<std::pair<std::string_view, bool>, 3> kTypes = {
      {{"enabled", true}, {"adaptive", true}, {"disabled", false}}};
  return named(kTypes, string_member(*value, "type", "thinking"), "thinking.type");
}

void read_switches(const json::Value& body, const ChatJsonOptions& options,
                   Conversation& conversation) {
  ThinkingRequest request;
  request.thinking = thinking_from_json(body);
  if (const json::Value* effort = given(body, "reasoning_effort"))
    request.effort = effort_from_json(*effort, options.thinking.names, "reasoning_effort");
  if (const json::Value* kwargs = object_member(body, "chat_template_kwargs", "")) {
    const std::string prefix = "chat_template_kwargs.";
    if (const json::Value* effort = given(*kwargs, "reasoning_effort"))
      request.template_effort =
          effort_from_json(*effort, options.thinking.names, prefix + "reasoning_effort");
    const std::optional<bool> thinking = bool_member(*kwargs, "thinking", prefix);
    const std::optional<bool> enable_thinking = bool_member(*kwargs, "enable_thinking", prefix);
    if (thinking || enable_thinking)
      request.template_thinking = thinking.value_or(false) || enable_thinking.value_or(false);
    conversation.drop_thinking = bool_member(*kwargs, "drop_thinking", prefix).value_or(true);
  }
  resolve_thinking(request, options.thinking, conversation);
}

// Every result answers a call of the assistant message before it, and every call is answered before
// somebody else speaks.
void check_history(const std::vector<Message>& messages) {
  std::vector<std::string> open_ids;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    const std::string path = "messages[" + std::to_string(i) + "]";
    if (message.role == Role::kTool) {
      const auto call = std::find(open_ids.begin(), open_ids.end(), message.tool_call_id);
      if (call == open_ids.end())
        refuse(path + ".tool_call_id", "answers no call of the assistant message before it");
      open_ids.erase(call);
      continue;
    }
    if (!open_ids.empty()) refuse(path, "comes before the results of all tool calls");
    for (const ToolCall& call : message.tool_calls) open_ids.push_back(call.id);
  }
}

}  // namespace

Message message_from_json(const json::Value& value, size_t message_idx,
                          const ChatJsonOptions& options) {
  const std::string path = "messages[" + std::to_string(message_idx) + "]";
  if (!value.is_object()) refuse(path, "has to be an object");
  Message message;
  message.role = named(kRoles, string_member(value, "role", path), path + ".role");
  if (const json::Value* content = given(value, "content"))
    message.content = content_from_json(*content, path + ".content", options);
  if (const std::string task = string_member(value, "task", path); !task.empty()) {
    if (message.role != Role::kUser) refuse(path + ".task", "only a user message may have one");
    message.task = named(kTasks, task, path + ".task");
  }
  if (message.role == Role::kTool)
    message.tool_call_id = string_member(value, "tool_call_id", path);
  if (message.role != Role::kAssistant) return message;

  // Servers and clients disagree on the name of this field.
  message.reasoning = string_member(value, "reasoning", path);
  if (message.reasoning.empty())
    message.reasoning = string_member(value, "reasoning_content", path);
  if (const json::Value* calls = array_member(value, "tool_calls", path + "."))
    for (const json::Value& call : calls->items())
      message.tool_calls.push_back(call_from_json(
          call, path + ".tool_calls[" + std::to_string(message.tool_calls.size()) + "]"));
  if (given(value, "content") == nullptr && message.tool_calls.empty() && message.reasoning.empty())
    refuse(path, "has neither content nor tool_calls");
  return message;
}

ToolDefinition tool_from_json(const json::Value& value, size_t tool_idx) {
  const std::string path = "tools[" + std::to_string(tool_idx) + "]";
  if (!value.is_object()) refuse(path, "has to be an object");
  if (string_member(value, "type", path) != "function")
    refuse(path + ".type", "has to be function");
  const json::Value* function = object_member(value, "function", path + ".");
  if (function == nullptr) refuse(path + ".function", "is missing");
  ToolDefinition tool;
  tool.name = string_member(*function, "name", path + ".function");
  if (!is_tool_name(tool.name))
    refuse(path + ".function.name", "has to be 1 to 128 letters, digits, '_' or '-'");
  tool.description = string_member(*function, "description", path + ".function");
  tool.strict = bool_member(*function, "strict", path + ".function.").value_or(false);
  if (const json::Value* parameters = object_member(*function, "parameters", path + ".function.")) {
    const json::Value* type = given(*parameters, "type");
    if (type != nullptr && !(type->is_string() && type->as_string() == "object"))
      refuse(path + ".function.parameters", "has to be a schema of type object");
    tool.parameters = *parameters;
  }
  return tool;
}

Conversation conversation_from_json(const json::Value& body, const ChatJsonOptions& options) {
  if (!body.is_object()) refuse("body", "has to be an object");
  Conversation conversation;
  const json::Value* messages = array_member(body, "messages", "");
  if (messages == nullptr || messages->items().empty())
    refuse("messages", "has to hold at least one");
  for (const json::Value& item : messages->items())
    conversation.messages.push_back(message_from_json(item, conversation.messages.size(), options));
  if (!options.lenient_history) check_history(conversation.messages);
  conversation.tools = tools_from_json(body);
  conversation.tool_choice = tool_choice_from_json(body);
  conversation.response_format = response_format_from_json(body);
  read_switches(body, options, conversation);

  const std::optional<bool> add_header = bool_member(body, "add_generation_prompt", "");
  conversation.add_generation_prompt = add_header.value_or(true);
  conversation.continue_final_message =
      bool_member(body, "continue_final_message", "").value_or(false) ||
      bool_member(messages->items().back(), "prefix", "messages[].").value_or(false);
  if (conversation.continue_final_message && add_header.value_or(false))
    refuse("add_generation_prompt", "contradicts continuing the final message");
  return conversation;
}

}  // namespace onecard::text
