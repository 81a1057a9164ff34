#include "base/error.h"

#include <cstdlib>

#include "base/log.h"

namespace onecard {

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kDeadline:
      return "deadline";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kDataCorrupt:
      return "data_corrupt";
    case ErrorCode::kDevice:
      return "device";
  }
  return "unknown";
}

void assert_failed(const char* expression, const char* file, int line) {
  log::error("assert_failed",
             {{"expression", expression}, {"file", file}, {"line", std::to_string(line)}});
  std::abort();
}

}  // namespace onecard
