#include "text/chat_encoder.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "text/chat_tokens.h"
#include "text/python_json.h"

namespace onecard::text {
namespace {

// The literal texts of the format.
constexpr std::string_view kToolsBeforeSchemas =
    "## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by "
    "writing a \"<\uff5cDSML\uff5c calls>\" block like the following:\n\n"
    "<\uff5cDSML\uff5c calls>\n"
    "<\uff5cDSML\uff5c invoke name=\"$TOOL_NAME\">\n"
    "<\uff5cDSML\uff5c parameter name=\"$PARAMETER_NAME\" "
    "string=\"true|false\">$PARAMETER_VALUE</\uff5cDSML\uff5c parameter>\n"
    "...\n"
    "</\uff5cDSML\uff5c invoke>\n"
    "<\uff5cDSML\uff5c invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</\uff5cDSML\uff5c invoke>\n"
    "</\uff5cDSML\uff5c calls>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types "
    "(numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning "
    "inside <think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";
constexpr std::string_view kToolsAfterSchemas =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";
constexpr std::string_view kJsonObjectFormat =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
    "{\"type\": \"json_object\"}";
constexpr std::string_view kCallsOpen = "\n\n<\uff5cDSML\uff5c calls>\n";
constexpr std::string_view kCallsClose = "</\uff5cDSML\uff5c calls>";
constexpr std::string_view kInvokeOpen = "<\uff5cDSML\uff5c invoke name=\"";
constexpr std::string_view kInvokeClose = "\n</\uff5cDSML\uff5c invoke>\n";
constexpr std::string_view kParameterOpen = "<\uff5cDSML\uff5c parameter name=\"";
constexpr std::string_view kParameterClose = "</\uff5cDSML\uff5c parameter>";
constexpr std::string_view kJoiner = "\n\n";

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

std::string_view task_token(Task task) {
  switch (task) {
    case Task::kNone:
      return {};
    case Task::kAction:
      return kTaskAction;
    case Task::kQuery:
      return kTaskQuery;
    case Task::kAuthority:
      return kTaskAuthority;
    case Task::kDomain:
      return kTaskDomain;
    case Task::kTitle:
      return kTaskTitle;
    case Task::kReadUrl:
      return kTaskReadUrl;
  }
  return {};
}

// Text in order, with a note of what a client wrote.
class PromptWriter {
 public:
  explicit PromptWriter(Prompt& prompt) : prompt_(prompt) {}

  void markup(std::string_view text) { prompt_.text += text; }

  void client(std::string_view text) {
    if (text.empty()) return;
    const size_t begin = prompt_.text.size();
    prompt_.text += text;
    prompt_.client_ranges.push_back({begin, prompt_.text.size()});
  }

  void content(const std::vector<ContentPart>& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) markup(kJoiner);
      if (parts[i].kind == ContentPart::Kind::kText) {
        client(parts[i].text);
      } else {
        markup(kImage);
        prompt_.image_sources.push_back(parts[i].text);
      }
    }
  }

 private:
  Prompt& prompt_;
};

bool is_empty(const std::vector<ContentPart>& parts) {
  // Two empty parts are not empty: their joiner is text.
  return parts.empty() ||
         (parts.size() == 1 && parts[0].kind == ContentPart::Kind::kText && parts[0].text.empty());
}

// What is printed under one header. A user turn holds the user, developer and tool messages of a
// run; every other turn is one message.
struct Turn {
  enum class Kind { kSystem, kUser, kAssistant, kReminder };
  Kind kind = Kind::kUser;
  std::vector<const Message*> messages;
  Task task = Task::kNone;
};

Turn::Kind turn_kind(Role role) {
  switch (role) {
    case Role::kSystem:
      return Turn::Kind::kSystem;
    case Role::kAssistant:
      return Turn::Kind::kAssistant;
    case Role::kLatestReminder:
      return Turn::Kind::kReminder;
    case Role::kDeveloper:
    case Role::kUser:
    case Role::kTool:
      break;
  }
  return Turn::Kind::kUser;
}

std::vector<Turn> merge_turns(const std::vector<const Message*>& messages) {
  std::vector<Turn> turns;
  for (const Message* message : messages) {
    const Turn::Kind kind = turn_kind(message->role);
    const bool joins = kind == Turn::Kind::kUser && !turns.empty() &&
                       turns.back().kind == Turn::Kind::kUser &&
                       (message->role == Role::kTool || turns.back().task == Task::kNone);
    if (!joins) turns.push_back({kind, {}, Task::kNone});
    turns.back().messages.push_back(message);
    if (message->task != Task::kNone) turns.back().task = message->task;
  }
  return turns;
}

// Puts the tool results of a turn into the order of the calls they answer; everything else keeps
// its place.
void sort_results(Turn& turn, const std::vector<ToolCall>& calls) {
  const auto rank = [&](const Message* message) {
    const auto call = std::find_if(calls.begin(), calls.end(), [&](const ToolCall& c) {
      return c.id == message->tool_call_id;
    });
    return call == calls.end() ? 0 : std::distance(calls.begin(), call);
  };
  std::vector<const Message*> results;
  for (const Message* message : turn.messages)
    if (message->role == Role::kTool) results.push_back(message);
  std::stable_sort(results.begin(), results.end(),
                   [&](const Message* a, const Message* b) { return rank(a) < rank(b); });
  auto next = results.begin();
  for (const Message*& message : turn.messages)
    if (message->role == Role::kTool) message = *next++;
}

// The members of a call's arguments, or nothing when they are no object.
std::optional<std::vector<json::Member>> object_members(const std::string& arguments) {
  if (arguments.find_first_not_of(" \t\r\n") == std::string::npos)
    return std::vector<json::Member>();
  try {
    json::Value value = json::parse(arguments);
    if (value.is_string()) value = json::parse(value.as_string());  // encoded twice
    if (value.is_object()) return std::move(value.members());
  } catch (const Error&) {
    // Broken JSON is shown to the model as it is.
  }
  return std::nullopt;
}

void write_parameter(PromptWriter& out, std::string_view name, bool is_string,
                     std::string_view value) {
  out.markup(kParameterOpen);
  out.client(name);
  out.markup(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
  out.client(value);
  out.markup(kParameterClose);
}

void write_call(PromptWriter& out, const ToolCall& call) {
  out.markup(kInvokeOpen);
  out.client(call.name);
  out.markup("\">\n");
  if (const auto members = object_members(call.arguments)) {
    for (size_t i = 0; i < members->size(); ++i) {
      const auto& [name, value] = (*members)[i];
      if (i > 0) out.markup("\n");
      write_parameter(out, name, value.is_string(),
                      value.is_string() ? value.as_string() : python_dumps(value));
    }
  } else {
    write_parameter(out, "arguments", true, call.arguments);
  }
  out.markup(kInvokeClose);
}

void write_calls(PromptWriter& out, const std::vector<ToolCall>& calls) {
  if (calls.empty()) return;
  out.markup(kCallsOpen);
  for (const ToolCall& call : calls) write_call(out, call);
  out.markup(kCallsClose);
}

void write_tools(PromptWriter& out, const Conversation& conversation) {
  const ToolChoice& choice = conversation.tool_choice;
  out.markup(kJoiner);
  out.markup(kToolsBeforeSchemas);
  const char* separator = "";
  for (const ToolDefinition& tool : conversation.tools) {
    if (choice.kind == ToolChoice::Kind::kNamed && tool.name != choice.name) continue;
    out.markup(separator);
    separator = "\n";
    out.client(
        python_dumps(json::Value::object({{"name", json::Value::string(tool.name)},
                                          {"description", json::Value::string(tool.description)},
                                          {"parameters", tool.parameters}})));
  }
  out.markup(kToolsAfterSchemas);
}

class Encoder {
 public:
  Encoder(const Conversation& conversation, const ChatEncoderOptions& options)
      : conversation_(conversation), options_(options), out_(prompt_) {}

  Prompt encode() {
    check();
    prompt_.thinking = conversation_.thinking;
    prompt_.effort = conversation_.effort;
    prompt_.tools_active = conversation_.tools_active();
    std::vector<const Message*> messages;
    for (const Message& message : conversation_.messages)
      if (message.role != Role::kSystem || !is_empty(message.content)) messages.push_back(&message);
    const bool has_system = !messages.empty() && messages.front()->role == Role::kSystem;
    write_beginning(has_system ? messages.front() : nullptr);
    if (has_system) messages.erase(messages.begin());
    write_turns(merge_turns(messages));
    return std::move(prompt_);
  }

 private:
  void check() const {
    const ToolChoice& choice = conversation_.tool_choice;
    if (forces_call() && conversation_.tools.empty())
      refuse("tool_choice: a call is demanded, but there are no tools");
    if (choice.kind == ToolChoice::Kind::kNamed &&
        std::none_of(conversation_.tools.begin(), conversation_.tools.end(),
                     [&](const ToolDefinition& tool) { return tool.name == choice.name; }))
      refuse("tool_choice: no tool has the name that is demanded");
    if (conversation_.messages.empty()) refuse("messages: there are none");
    if (conversation_.continue_final_message &&
        conversation_.messages.back().role != Role::kAssistant)
      refuse("continue_final_message: the last message is not the assistant's");
    if (conversation_.thinking && (conversation_.effort < 1 || conversation_.effort > 100))
      refuse("reasoning_effort: has to be from 1 to 100");
    for (size_t i = 0; i < conversation_.messages.size(); ++i) {
      const Message& message = conversation_.messages[i];
      if (message.role == Role::kUser || message.role == Role::kTool) continue;
      for (const ContentPart& part : message.content)
        if (part.kind == ContentPart::Kind::kImage)
          refuse("messages[" + std::to_string(i) +
                 "].content: only user and tool messages may hold images");
    }
  }

  bool forces_call() const {
    return conversation_.tool_choice.kind == ToolChoice::Kind::kRequired ||
           conversation_.tool_choice.kind == ToolChoice::Kind::kNamed;
  }

  void write_beginning(const Message* system) {
    const bool shows_tools = !conversation_.tools.empty() &&
                             (conversation_.tools_active() || options_.show_unused_tools);
    const bool json_object =
        conversation_.response_format.kind == ResponseFormat::Kind::kJsonObject;
    out_.markup(kBos);
    if (conversation_.thinking) {
      out_.markup(kSystemTag);
      out_.markup("Reasoning Effort: " + std::to_string(conversation_.effort) +
                  " (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
    } else if (system != nullptr || shows_tools || json_object) {
      out_.markup(kSystemTag);
    }
    if (system != nullptr) out_.content(system->content);
    if (shows_tools) write_tools(out_, conversation_);
    if (json_object) {
      out_.markup(kJoiner);
      out_.markup(kJsonObjectFormat);
    }
  }

  void write_turns(std::vector<Turn> turns) {
    // Reasoning before the last user turn is left out, unless it is to be kept. With tools it
    // always is: a call is the outcome of the reasoning before it.
    const bool keeps_all = !conversation_.drop_thinking || !conversation_.tools.empty();
    size_t first_with_reasoning = 0;
    if (!keeps_all)
      for (size_t i = 0; i < turns.size(); ++i)
        if (turns[i].kind == Turn::Kind::kUser || turns[i].kind == Turn::Kind::kSystem)
          first_with_reasoning = i;
    const std::vector<ToolCall> no_calls;
    const std::vector<ToolCall>* calls = &no_calls;
    for (size_t i = 0; i < turns.size(); ++i) {
      Turn& turn = turns[i];
      const Message& message = *turn.messages.front();
      const bool follows_task = i > 0 && turns[i - 1].task != Task::kNone;
      const bool is_last = i + 1 == turns.size();
      switch (turn.kind) {
        case Turn::Kind::kSystem:
          out_.markup(kSystemTag);
          out_.content(message.content);
          break;
        case Turn::Kind::kReminder:
          out_.markup(kLatestReminder);
          out_.content(message.content);
          break;
        case Turn::Kind::kUser:
          sort_results(turn, *calls);
          write_user_turn(turn);
          break;
        case Turn::Kind::kAssistant:
          calls = &message.tool_calls;
          write_assistant_turn(message, !follows_task, i >= first_with_reasoning,
                               is_last && conversation_.continue_final_message);
          break;
      }
    }
    if (conversation_.continue_final_message) return;
    write_generation_header(!turns.empty() && turns.back().task != Task::kNone);
  }

  void write_user_turn(const Turn& turn) {
    out_.markup(kUserTag);
    const char* separator = "";
    for (const Message* message : turn.messages) {
      out_.markup(separator);
      separator = "\n\n";
      const bool is_result = message->role == Role::kTool;
      if (is_result) out_.markup("<tool_result>");
      out_.content(message->content);
      if (is_result) out_.markup("</tool_result>");
    }
    if (turn.task == Task::kAction) {
      out_.markup(kAssistantTag);
      out_.markup(conversation_.thinking ? kThinkOpen : kThinkClose);
    }
    out_.markup(task_token(turn.task));
  }

  void write_assistant_turn(const Message& message, bool has_header, bool shows_reasoning,
                            bool goes_on) {
    const bool has_answer = !is_empty(message.content) || !message.tool_calls.empty();
    if (goes_on) {
      prompt_.continuation = true;
      prompt_.output_start = ParserStart::kContent;
    }
    if (has_header) {
      out_.markup(kAssistantTag);
      if (conversation_.thinking && shows_reasoning) {
        out_.markup(kThinkOpen);
        out_.client(message.reasoning);
        if (goes_on && !has_answer && !message.reasoning.empty()) {
          start_in_reasoning();
          return;
        }
      }
      out_.markup(kThinkClose);
    }
    out_.content(message.content);
    write_calls(out_, message.tool_calls);
    if (!goes_on) out_.markup(kEos);
  }

  void write_generation_header(bool follows_task) {
    prompt_.output_start = ParserStart::kContent;
    if (!conversation_.add_generation_prompt || follows_task) return;
    out_.markup(kAssistantTag);
    if (conversation_.thinking) {
      out_.markup(kThinkOpen);
      start_in_reasoning();
      return;
    }
    out_.markup(kThinkClose);
    if (!forces_call()) return;
    out_.markup(kCallsOpen);
    prompt_.output_start = ParserStart::kCalls;
  }

  void start_in_reasoning() {
    prompt_.output_start = ParserStart::kReasoning;
    if (!forces_call()) return;
    prompt_.forced_after_thinking = kCallsOpen;
    if (conversation_.tool_choice.kind == ToolChoice::Kind::kNamed) {
      prompt_.forced_after_thinking += kInvokeOpen;
      prompt_.forced_after_thinking += conversation_.tool_choice.name;
      prompt_.forced_after_thinking += "\">\n";
    }
  }

  const Conversation& conversation_;
  const ChatEncoderOptions& options_;
  Prompt prompt_;
  PromptWriter out_;
};

bool is_in_client_text(const Prompt& prompt, size_t begin, size_t end) {
  return std::any_of(
      prompt.client_ranges.begin(), prompt.client_ranges.end(),
      [&](const ByteRange& range) { return range.begin < end && begin < range.end; });
}

// A marker without its token would be read as ordinary text, and the model would see no structure.
void require_tokens(const Prompt& prompt, const Tokenizer& tokenizer) {
  for (const std::string_view token : kChatTokens) {
    if (tokenizer.added_token(token)) continue;
    for (size_t at = prompt.text.find(token); at != std::string::npos;
         at = prompt.text.find(token, at + 1))
      if (!is_in_client_text(prompt, at, at + token.size()))
        throw Error(ErrorCode::kUnsupported,
                    "chat encoding: the tokenizer has no token " + std::string(token));
  }
}

}  // namespace

Prompt encode_chat(const Conversation& conversation, const ChatEncoderOptions& options) {
  return Encoder(conversation, options).encode();
}

std::vector<TokenId> encode_ids(const Prompt& prompt, const Tokenizer& tokenizer,
                                ClientMarkup markup) {
  require_tokens(prompt, tokenizer);
  if (markup == ClientMarkup::kTokens) return tokenizer.encode(prompt.text);
  return tokenizer.encode(prompt.text, prompt.client_ranges);
}

}  // namespace onecard::text
