// {"error": {"message", "type", "param", "code"}}
#pragma once

#include <string>

#include "server/api_error.h"
#include "server/http/message.h"

namespace onecard::server::openai {

std::string error_body(const ApiError& error);
http::Response error_response(const ApiError& error);

}  // namespace onecard::server::openai
