#include "server/openai/response_request.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "server/chat_fields.h"
#include "server/fields.h"
#include "text/python_json.h"

namespace onecard::server::openai {
namespace {

using text::ContentPart;
using text::Message;
using text::Role;

std::vector<ContentPart> read_content(const Fields& fields, std::string_view key,
                                      const text::ChatJsonOptions& options) {
  const json::Value* value = fields.find(key);
  if (value == nullptr) return {};
  if (value->is_string()) return {text_part(value->as_string())};
  if (!value->is_array()) fields.refuse(key, "has to be a string or an array of parts");
  std::vector<ContentPart> parts;
  for (const json::Value& item : value->items()) {
    const Fields part(item, fields.name(at(key, parts.size())));
    const std::string type = required_string(part, "type");
    if (type == "input_text" || type == "output_text" || type == "text") {
      parts.push_back(text_part(required_string(part, "text")));
    } else if (type == "refusal") {
      parts.push_back(text_part(required_string(part, "refusal")));
    } else if (type == "input_image") {
      check_images_allowed(part, options);
      parts.push_back({ContentPart::Kind::kImage, required_string(part, "image_url")});
    } else {
      part.refuse("type", "has to be input_text, output_text, refusal or input_image");
    }
  }
  return parts;
}

// Items in order to messages: reasoning, text and calls that are neighbours are one turn of the
// assistant; an output goes behind the turn that holds its call.
class InputReader {
 public:
  InputReader(const text::ChatJsonOptions& options, std::vector<Message>& messages)
      : options_(options), messages_(messages) {}

  void read(const Fields& fields) {
    const json::Value* input = fields.find("input");
    if (input == nullptr) fields.refuse("input", "is missing");
    if (input->is_string()) {
      messages_.push_back(message_of(Role::kUser, {text_part(input->as_string())}));
      return;
    }
    if (!input->is_array() || input->items().empty())
      fields.refuse("input", "has to be a string or an array of items, not empty");
    for (size_t i = 0; i < input->items().size(); ++i)
      add(Fields(input->items()[i], fields.name(at("input", i))));
    place_outputs();
  }

 private:
  void add(const Fields& item) {
    const std::string type = item.string("type").value_or("message");
    if (type == "message") {
      add_message(item);
    } else if (type == "reasoning") {
      add_reasoning(item);
    } else if (type == "function_call") {
      std::string name = required_string(item, "name");
      if (const std::string space = item.string("namespace").value_or(""); !space.empty())
        name = space + "::" + name;
      add_call(item, std::move(name), item.string("arguments").value_or("{}"));
    } else if (type == "custom_tool_call") {
      const json::Value arguments =
          json::Value::object({{"input", json::Value::string(item.string("input").value_or(""))}});
      add_call(item, required_string(item, "name"), text::python_dumps(arguments));
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
      outputs_.push_back(message_of(Role::kTool, read_content(item, "output", options_)));
      outputs_.back().tool_call_id = required_string(item, "call_id");
    } else {
      item.refuse("type", "\"" + type + "\" items are not supported");
    }
  }

  void add_message(const Fields& item) {
    const std::string role = required_string(item, "role");
    const Role known = role == "user"        ? Role::kUser
                       : role == "system"    ? Role::kSystem
                       : role == "developer" ? Role::kDeveloper
                                             : Role::kAssistant;
    if (known == Role::kAssistant && role != "assistant")
      item.refuse("role", "has to be user, assistant, system or developer");
    std::vector<ContentPart> content = read_content(item, "content", options_);
    if (known != Role::kAssistant) {
      messages_.push_back(message_of(known, std::move(content)));
      return;
    }
    Message& turn = assistant_turn();
    std::move(content.begin(), content.end(), std::back_inserter(turn.content));
  }

  void add_reasoning(const Fields& item) {
    std::string text;
    if (const json::Value* content = item.array("content"))
      for (const json::Value& value : content->items()) {
        const Fields part(value, item.name("content"));
        if (!text.empty()) text += '\n';
        text += part.string("text").value_or("");
      }
    // Reasoning opens a turn: a second one behind text or calls belongs to the next.
    if (!messages_.empty() && messages_.back().role == Role::kAssistant &&
        (!messages_.back().content.empty() || !messages_.back().tool_calls.empty()))
      messages_.push_back(message_of(Role::kAssistant));
    std::string& reasoning = assistant_turn().reasoning;
    if (!reasoning.empty() && !text.empty()) reasoning += '\n';
    reasoning += text;
  }

  void add_call(const Fields& item, std::string name, std::string arguments) {
    assistant_turn().tool_calls.push_back(
        {required_string(item, "call_id"), std::move(name), std::move(arguments)});
  }

  Message& assistant_turn() {
    if (messages_.empty() || messages_.back().role != Role::kAssistant)
      messages_.push_back(message_of(Role::kAssistant));
    return messages_.back();
  }

  // Behind the last turn with the call, in the order they came; without one, at the end.
  void place_outputs() {
    std::unordered_map<std::string, size_t> turn_of_call;
    for (size_t i = 0; i < messages_.size(); ++i)
      for (const text::ToolCall& call : messages_[i].tool_calls) turn_of_call[call.id] = i;
    std::vector<std::vector<Message>> behind(messages_.size() + 1);
    for (Message& output : outputs_) {
      const auto turn = turn_of_call.find(output.tool_call_id);
      behind[turn != turn_of_call.end() ? turn->second : messages_.size()].push_back(
          std::move(output));
    }
    std::vector<Message> placed;
    for (size_t i = 0; i <= messages_.size(); ++i) {
      if (i < messages_.size()) placed.push_back(std::move(messages_[i]));
      std::move(behind[i].begin(), behind[i].end(), std::back_inserter(placed));
    }
    messages_ = std::move(placed);
  }

  const text::ChatJsonOptions& options_;
  std::vector<Message>& messages_;
  std::vector<Message> outputs_;
};

text::ToolDefinition function_tool(const Fields& tool, size_t tool_idx, const std::string& space,
                                   const std::string& space_description) {
  text::ToolDefinition definition = flat_function_tool(tool, "parameters", tool_idx);
  if (space.empty()) return definition;
  definition.name = space + "::" + definition.name;
  if (!space_description.empty())
    definition.description = definition.description.empty()
                                 ? space_description
                                 : space_description + "\n" + definition.description;
  return definition;
}

void read_tools(const Fields& fields, ResponseRequest& request) {
  const json::Value* list = fields.array("tools");
  if (list == nullptr) return;
  std::vector<text::ToolDefinition>& tools = request.chat.conversation.tools;
  for (size_t i = 0; i < list->items().size(); ++i) {
    const Fields tool(list->items()[i], fields.name(at("tools", i)));
    const std::string type = required_string(tool, "type");
    if (type == "function") {
      tools.push_back(function_tool(tool, i, "", ""));
    } else if (type == "namespace") {
      const std::string space = required_string(tool, "name");
      const std::string description = tool.string("description").value_or("");
      if (const json::Value* inner = tool.array("tools"))
        for (const json::Value& value : inner->items())
          tools.push_back(function_tool(Fields(value, tool.name("tools")), i, space, description));
    } else if (type == "custom") {
      const json::Value parameters = json::parse(
          R"({"type":"object","properties":{"input":{"type":"string"}},"required":["input"]})");
      tools.push_back({required_string(tool, "name"), tool.string("description").value_or(""),
                       parameters, false});
      request.custom_tools.insert(tools.back().name);
    }  // Others run on the vendor's servers: the model is not told about them.
  }
}

void read_tool_choice(const Fields& fields, text::ToolChoice& choice) {
  const json::Value* value = fields.find("tool_choice");
  if (value == nullptr) return;
  const std::string name = value->is_string() ? value->as_string() : "";
  if (name == "auto") return;
  if (name == "none") {
    choice.kind = text::ToolChoice::Kind::kNone;
  } else if (name == "required") {
    choice.kind = text::ToolChoice::Kind::kRequired;
  } else if (value->is_object()) {
    const Fields named(*value, fields.name("tool_choice"));
    const std::string type = required_string(named, "type");
    if (type != "function" && type != "custom")
      named.refuse("type", "has to be function or custom");
    choice = {text::ToolChoice::Kind::kNamed, required_string(named, "name")};
  } else {
    fields.refuse("tool_choice", "has to be auto, none, required or a function with its name");
  }
}

// text.format, which is flat here: {"type", "name", "schema", "strict"}.
void read_format(const Fields& fields, text::ResponseFormat& format) {
  const json::Value* text = fields.object("text");
  const json::Value* value =
      text == nullptr ? nullptr : Fields(*text, fields.name("text")).object("format");
  if (value == nullptr) return;
  const Fields form(*value, "text.format");
  const std::string type = required_string(form, "type");
  if (type == "json_object") {
    format.kind = text::ResponseFormat::Kind::kJsonObject;
  } else if (type == "json_schema") {
    format.kind = text::ResponseFormat::Kind::kJsonSchema;
    format.schema_name = form.string("name").value_or("");
    const json::Value* schema = form.object("schema");
    if (schema == nullptr) form.refuse("schema", "is missing");
    format.schema = *schema;
    format.strict = form.boolean("strict").value_or(false);
  } else if (type != "text") {
    form.refuse("type", "has to be text, json_object or json_schema");
  }
}

void refuse_unsupported(const Fields& fields) {
  for (const std::string_view key : {"previous_response_id", "conversation", "prompt"})
    if (fields.find(key) != nullptr)
      throw Error(ErrorCode::kUnsupported,
                  std::string(key) + ": is not supported: answers are not stored");
  if (fields.boolean("background").value_or(false))
    throw Error(ErrorCode::kUnsupported, "background: is not supported");
  if (fields.integer("top_logprobs", 0, kMaxTopLogprobs).value_or(0) > 0)
    throw Error(ErrorCode::kUnsupported, "top_logprobs: is not supported here");
}

void fill_echo(const Fields& fields, ResponseRequest& request) {
  const auto echo = [&](const char* key, json::Value fallback) {
    const json::Value* value = fields.find(key);
    request.echo.emplace_back(key, value != nullptr ? *value : std::move(fallback));
  };
  echo("instructions", json::Value());
  echo("max_output_tokens", json::Value());
  echo("metadata", json::Value::object());
  request.echo.emplace_back("parallel_tool_calls",
                            json::Value::boolean(request.chat.parallel_tool_calls));
  request.echo.emplace_back("previous_response_id", json::Value());
  echo("reasoning", json::Value::object());
  request.echo.emplace_back("store", json::Value::boolean(false));
  echo("temperature", json::Value::real(1));
  echo("text", json::parse(R"({"format":{"type":"text"}})"));
  echo("tool_choice", json::Value::string("auto"));
  echo("tools", json::Value::array());
  echo("top_p", json::Value::real(1));
  request.echo.emplace_back("truncation", json::Value::string("disabled"));
}

}  // namespace

ResponseRequest response_request_from_json(const json::Value& body,
                                           const text::ChatJsonOptions& options) {
  const Fields fields(body);
  refuse_unsupported(fields);
  ResponseRequest request;
  ChatRequest& chat = request.chat;
  chat.model = fields.string("model").value_or("");
  if (const std::string instructions = fields.string("instructions").value_or("");
      !instructions.empty())
    chat.conversation.messages.push_back(message_of(Role::kSystem, {text_part(instructions)}));
  InputReader(options, chat.conversation.messages).read(fields);
  read_tools(fields, request);
  read_tool_choice(fields, chat.conversation.tool_choice);
  read_format(fields, chat.conversation.response_format);

  text::ThinkingRequest thinking;
  if (const json::Value* reasoning = fields.object("reasoning"))
    if (const json::Value* effort = Fields(*reasoning, fields.name("reasoning")).find("effort"))
      thinking.effort = text::effort_from_json(*effort, options.thinking.names, "reasoning.effort");
  text::resolve_thinking(thinking, options.thinking, chat.conversation);

  chat.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  GenerationFields& generation = chat.generation;
  generation.max_tokens = fields.limit("max_output_tokens", 1);
  read_temperature_and_top_p(fields, generation.sampling);
  generation.stream = fields.boolean("stream").value_or(false);
  fields.boolean("store");
  fill_echo(fields, request);
  return request;
}

}  // namespace onecard::server::openai
