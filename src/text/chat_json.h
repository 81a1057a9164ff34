// The body of a chat completions request to a Conversation: the fields that shape the prompt. What
// concerns sampling, streaming or the server is validated elsewhere.
#pragma once

#include <cstddef>

#include "base/json.h"
#include "text/chat.h"

namespace onecard::text {

struct ChatJsonOptions {
  ThinkingDefaults thinking = {};
  /// Images become placeholders and sources; otherwise they are refused with kUnsupported.
  bool allow_images = false;
  /// A tool result that answers no call, and calls without a result, are let through: agents cancel
  /// calls and cut histories. Otherwise they are refused, as the official service does.
  bool lenient_history = false;
};

/// Reads messages, tools, tool_choice, response_format, thinking, reasoning_effort,
/// chat_template_kwargs, add_generation_prompt and continue_final_message. Unknown members are
/// ignored. Throws kInvalidArgument (or kUnsupported); the message begins with the parameter that
/// is wrong and ": ", for instance "messages[2].role: ...".
Conversation conversation_from_json(const json::Value& body, const ChatJsonOptions& options = {});

/// One element of `messages`; `message_idx` is for error messages.
Message message_from_json(const json::Value& value, size_t message_idx,
                          const ChatJsonOptions& options = {});
/// One element of `tools`; `tool_idx` is for error messages.
ToolDefinition tool_from_json(const json::Value& value, size_t tool_idx);

}  // namespace onecard::text
