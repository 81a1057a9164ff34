// A conversation as every frontend hands it over: validated, switches resolved, independent of the
// HTTP surface it came through. Plain data.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace onecard::text {

enum class Role { kSystem, kDeveloper, kUser, kAssistant, kTool, kLatestReminder };

/// A quick instruction on a user message: its token stands in front of the model's answer.
enum class Task { kNone, kAction, kQuery, kAuthority, kDomain, kTitle, kReadUrl };

struct ContentPart {
  enum class Kind { kText, kImage };
  Kind kind = Kind::kText;
  std::string text;  // the text byte for byte; for an image its source (URL or data URL)
};

struct ToolCall {
  std::string id;
  std::string name;       // with its namespace, if it has one: "namespace::name"
  std::string arguments;  // as the client sent it: usually the text of a JSON object
};

struct Message {
  Role role = Role::kUser;
  std::vector<ContentPart> content;
  std::string reasoning;             // assistant
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool
  Task task = Task::kNone;           // user
};

struct ToolDefinition {
  std::string name;
  std::string description;
  json::Value parameters = json::Value::object();  // the JSON schema, members in the client's order
  bool strict = false;
};

struct ToolChoice {
  enum class Kind { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name;  // of a declared tool, for kNamed
};

struct ResponseFormat {
  enum class Kind { kText, kJsonObject, kJsonSchema };
  Kind kind = Kind::kText;
  std::string schema_name;  // kJsonSchema
  json::Value schema;       // kJsonSchema
  bool strict = false;      // kJsonSchema
};

struct Conversation {
  std::vector<Message> messages;
  std::vector<ToolDefinition> tools;
  ToolChoice tool_choice;
  ResponseFormat response_format;

  bool thinking = true;
  int effort = 75;            // 1 to 100; without meaning when thinking is off
  bool drop_thinking = true;  // leave out the reasoning of turns before the last user turn
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the last message is the assistant's, and goes on

  /// Tools are shown to the model, and its tool markup counts as calls.
  bool tools_active() const {
    return !tools.empty() && tool_choice.kind != ToolChoice::Kind::kNone;
  }
};

/// What a prompt ends in. It decides how the output begins, whatever the request said.
enum class ParserStart {
  kReasoning,  // <think>
  kContent,    // </think>, a task token, or the text of a message that is continued
  kCalls,      // the opener of a block of calls
};

/// The reasoning effort that a client asked for: off, or a number from 1 to 100.
struct Effort {
  bool off = false;
  int value = 75;
};

/// What the names of efforts mean.
struct EffortNames {
  int low = 50;   // also "minimal"
  int high = 75;  // also "medium" and "xhigh"
  int max = 100;  // also "ultra"
};

/// A number from 1 to 100 or a name; null is none at all. Throws kInvalidArgument
/// "<parameter>: ..." for anything else.
std::optional<Effort> effort_from_json(const json::Value& value, const EffortNames& names,
                                       const std::string& parameter);

/// Where a request can say how much to think.
struct ThinkingRequest {
  std::optional<bool> thinking;           // thinking.type
  std::optional<Effort> effort;           // reasoning_effort, output_config.effort, ...
  std::optional<Effort> template_effort;  // chat_template_kwargs.reasoning_effort
  std::optional<bool> template_thinking;  // chat_template_kwargs.thinking or .enable_thinking
};

/// What a server does when a request does not say.
struct ThinkingDefaults {
  bool thinking = true;
  int effort = 75;
  EffortNames names;
};

/// Sets `conversation.thinking` and `.effort`: `thinking` wins, then an effort of "none", then the
/// template's switch, then the default; an effort of "none" next to thinking that is on counts as
/// absent.
void resolve_thinking(const ThinkingRequest& request, const ThinkingDefaults& defaults,
                      Conversation& conversation);

}  // namespace onecard::text
