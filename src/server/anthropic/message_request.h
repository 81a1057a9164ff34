// The body of POST /v1/messages (Anthropic) as a chat request: validated, defaults filled in. Pure;
// safe from any thread.
#pragma once

#include <string_view>

#include "base/json.h"
#include "server/openai/chat_request.h"
#include "text/chat_json.h"

namespace onecard::server::anthropic {

/// `needs_max_tokens`: false for count_tokens. Throws kInvalidArgument or kUnsupported, naming the
/// field as this API knows it.
openai::ChatRequest message_request_from_json(const json::Value& body,
                                              const text::ChatJsonOptions& options,
                                              bool needs_max_tokens);

}  // namespace onecard::server::anthropic
