#include "server/api_error.h"

#include <algorithm>
#include <utility>

namespace onecard::server {
namespace {

const char* type_of_status(int status) {
  switch (status) {
    case 401:
      return "AuthenticationError";
    case 404:
      return "NotFoundError";
    case 429:
      return "RateLimitError";
    case 500:
      return "InternalServerError";
    case 501:
      return "NotImplementedError";
    case 503:
      return "ServiceUnavailableError";
    default:
      return "BadRequestError";
  }
}

// "messages[2].role: has to be ..." names messages[2].role; "json: byte 3: ..." names nothing.
std::string parameter_of(const std::string& message) {
  const size_t colon = message.find(": ");
  if (colon == std::string::npos || colon == 0 || colon > 200) return "";
  const std::string head = message.substr(0, colon);
  const bool is_path = std::all_of(head.begin(), head.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '[' || c == ']' || c == '$' || c == '-';
  });
  return is_path && head != "json" ? head : "";
}

}  // namespace

ApiError::ApiError(int status, const std::string& message, std::string param, std::string code,
                   std::string type)
    : std::runtime_error(message),
      status_(status),
      type_(type.empty() ? type_of_status(status) : std::move(type)),
      param_(std::move(param)),
      code_(std::move(code)) {}

ApiError ApiError::from(const Error& error) {
  const std::string message = error.what();
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
      return ApiError(400, message, parameter_of(message));
    case ErrorCode::kUnsupported:
      return ApiError(501, message, parameter_of(message), "unsupported");
    case ErrorCode::kResourceExhausted:  // a bound on what one request may cost
      return ApiError(400, message, parameter_of(message), "too_large");
    default:
      return ApiError(500, message);
  }
}

}  // namespace onecard::server
