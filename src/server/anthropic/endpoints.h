// The Anthropic surface: /v1/messages and /v1/messages/count_tokens.
#pragma once

#include "server/api_error.h"
#include "server/http/router.h"
#include "server/service.h"

namespace onecard::server::anthropic {

void add_endpoints(http::Router& router, Service& service);

/// {"type": "error", "error": {"type", "message"}}
http::Response error_response(const ApiError& error);

}  // namespace onecard::server::anthropic
