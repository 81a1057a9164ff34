#include "server/openai/chat_request.h"

#include "base/error.h"

namespace onecard::server::openai {

ChatRequest chat_request_from_json(const json::Value& body, const text::ChatJsonOptions& options) {
  const Fields fields(body);
  ChatRequest request;
  request.model = fields.string("model").value_or("");
  request.generation = read_generation_fields(fields);
  request.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  request.include_reasoning = fields.boolean("include_reasoning").value_or(true);
  request.thinking_token_budget = fields.limit("thinking_token_budget", 0);

  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const std::optional<int64_t> top = fields.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && *top > 0 && !logprobs) fields.refuse("top_logprobs", "needs logprobs to be true");
  if (logprobs) request.num_logprobs = int(top.value_or(0));

  if (fields.boolean("echo").value_or(false))
    throw Error(ErrorCode::kUnsupported, "echo: is not supported for chats");
  if (fields.boolean("add_special_tokens").value_or(false))
    throw Error(ErrorCode::kUnsupported,
                "add_special_tokens: the prompt of a chat already has its special tokens");

  request.conversation = text::conversation_from_json(body, options);
  return request;
}

ChatRequest parse_chat_request(std::string_view body, const text::ChatJsonOptions& options) {
  return chat_request_from_json(json::parse(body), options);
}

}  // namespace onecard::server::openai
