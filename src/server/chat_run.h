// A validated chat to running sequences: what every chat protocol does after parsing its own body.
#pragma once

#include <string>
#include <vector>

#include "server/answer_exchange.h"
#include "server/http/exchange.h"
#include "server/openai/chat_request.h"
#include "server/service.h"

namespace onecard::server {

struct ChatRun {
  std::vector<Choice> choices;
  std::vector<int32_t> prompt;
};

/// Throws ApiError or Error when the request is refused; nothing runs then.
ChatRun run_chat(Service& service, const openai::ChatRequest& request,
                 const std::string& request_id, const http::Wake& wake);

}  // namespace onecard::server
