#include "server/openai/error_body.h"

#include "base/json.h"

namespace onecard::server::openai {

std::string error_body(const ApiError& error) {
  std::string body = "{\"error\":{\"message\":";
  json::append_quoted(body, error.what());
  body += ",\"type\":";
  json::append_quoted(body, error.type());
  body += ",\"param\":";
  if (error.param().empty())
    body += "null";
  else
    json::append_quoted(body, error.param());
  body += ",\"code\":";
  if (error.code().empty())
    body += std::to_string(error.status());
  else
    json::append_quoted(body, error.code());
  return body + "}}";
}

http::Response error_response(const ApiError& error) {
  http::Response response;
  response.status = error.status();
  response.body = error_body(error);
  if (error.retry_after_seconds() > 0)
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds()));
  if (error.status() == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace onecard::server::openai
