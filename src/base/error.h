// The one way to fail: throw Error(code, "what was tried: what was found"). The code says what the
// failure invalidates, which decides who catches it (docs/architecture.md, "Errors").
#pragma once

#include <stdexcept>
#include <string>

namespace onecard {

enum class ErrorCode {
  kInvalidArgument,    // the call
  kNotFound,           // the call
  kUnsupported,        // the call
  kCancelled,          // one sequence
  kDeadline,           // one sequence
  kResourceExhausted,  // one sequence
  kIo,                 // one record, then its tier
  kDataCorrupt,        // one record, then its tier
  kDevice,             // the engine, for good
};

/// The code's name as logs and messages show it, for instance "invalid_argument".
const char* error_code_name(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

/// Throws Error(code, message) unless `condition` holds. For messages that cost something to build,
/// write the `if`.
inline void require(bool condition, ErrorCode code, const char* message) {
  if (!condition) throw Error(code, message);
}

/// Stops the process: a broken invariant. User input never reaches one.
[[noreturn]] void assert_failed(const char* expression, const char* file, int line);

}  // namespace onecard

#define ONECARD_ASSERT(expression) \
  ((expression) ? void(0) : ::onecard::assert_failed(#expression, __FILE__, __LINE__))
