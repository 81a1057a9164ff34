// The body of POST /v1/chat/completions: validated, defaults filled in. Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/openai/sampling_fields.h"
#include "text/chat.h"
#include "text/chat_json.h"

namespace onecard::server::openai {

struct ChatRequest {
  std::string model;  // empty: whatever is served
  text::Conversation conversation;
  GenerationFields generation;
  bool parallel_tool_calls = true;
  bool include_reasoning = true;  // reasoning is generated and counted in any case
  std::optional<int64_t> thinking_token_budget;
  std::optional<int> num_logprobs;  // log probabilities, of so many alternatives
};

/// Throws Error: kInvalidArgument or kUnsupported, naming the field and what was expected.
ChatRequest parse_chat_request(std::string_view body, const text::ChatJsonOptions& options);
/// The same from a body that is already JSON; `body` is an object.
ChatRequest chat_request_from_json(const json::Value& body, const text::ChatJsonOptions& options);

}  // namespace onecard::server::openai
