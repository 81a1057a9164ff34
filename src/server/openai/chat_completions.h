// POST /v1/chat/completions: from the body to the exchange that answers it.
#pragma once

#include <memory>

#include "server/http/exchange.h"
#include "server/service.h"

namespace onecard::server::openai {

/// Throws ApiError or Error when the request is refused; nothing runs then.
std::unique_ptr<http::Exchange> start_chat_completion(Service& service,
                                                      const http::Request& request,
                                                      const http::Wake& wake);

}  // namespace onecard::server::openai
