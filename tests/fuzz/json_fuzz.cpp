// base/json: any bytes either parse or throw Error; what parses survives dump and parse unchanged.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::string once = onecard::json::dump(onecard::json::parse(text));
    if (onecard::json::dump(onecard::json::parse(once)) != once) std::abort();
  } catch (const onecard::Error& error) {
    if (error.code() != onecard::ErrorCode::kInvalidArgument) std::abort();
  }
  return 0;
}
