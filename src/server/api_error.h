// A request that is refused or has failed, as an API answers it. Thrown by parsers and handlers,
// turned into a response where the request is handled.
#pragma once

#include <stdexcept>
#include <string>

#include "base/error.h"

namespace onecard::server {

class ApiError : public std::runtime_error {
 public:
  /// `type` and `code` empty: what the status stands for.
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "",
           std::string type = "");
  /// kInvalidArgument and kUnsupported are the client's (400, 501), the rest is ours. A message
  /// that begins with the name of a parameter and ": " names `param`.
  static ApiError from(const Error& error);

  int status() const { return status_; }
  const std::string& type() const { return type_; }
  const std::string& param() const { return param_; }  // empty: none
  const std::string& code() const { return code_; }    // empty: the status, as a number
  /// Seconds after which another try makes sense; 0: not said.
  int retry_after_seconds() const { return retry_after_seconds_; }
  ApiError& set_retry_after(int seconds) {
    retry_after_seconds_ = seconds;
    return *this;
  }

 private:
  int status_;
  std::string type_;
  std::string param_;
  std::string code_;
  int retry_after_seconds_ = 0;
};

}  // namespace onecard::server
