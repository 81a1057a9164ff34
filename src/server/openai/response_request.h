// The body of POST /v1/responses as a chat request, and what its answer repeats. Pure; safe from
// any thread.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/openai/chat_request.h"
#include "text/chat_json.h"

namespace onecard::server::openai {

struct ResponseRequest {
  ChatRequest chat;
  std::set<std::string> custom_tools;  // their one argument is the text `input`
  std::vector<json::Member> echo;      // fields that every response object repeats
};

/// Throws kInvalidArgument or kUnsupported, naming the field as this API knows it.
ResponseRequest response_request_from_json(const json::Value& body,
                                           const text::ChatJsonOptions& options);

}  // namespace onecard::server::openai
