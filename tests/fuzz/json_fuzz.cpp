// base/json: any bytes either parse or throw Error; what parses survives dump and parse unchanged,
// and every accessor either answers or throws.
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

namespace {

using onecard::json::Kind;
using onecard::json::Value;

void expect(bool condition) {
  if (!condition) std::abort();
}

template <typename Call>
void expect_refused(Call call) {
  try {
    call();
  } catch (const onecard::Error&) {
    return;
  }
  std::abort();
}

void visit(Value& value) {
  if (value.is_number()) {
    expect(!std::isnan(value.as_double()));
    const auto integer = value.as_int64();
    expect(!integer || Value::integer(*integer).as_int64() == integer);
  } else {
    expect_refused([&] { static_cast<void>(value.lexeme()); });
  }
  if (value.is_bool())
    expect(Value::boolean(value.as_bool()).is_bool());
  else
    expect_refused([&] { static_cast<void>(value.as_bool()); });
  if (!value.is_string()) expect_refused([&] { static_cast<void>(value.as_string()); });
  if (value.is_array()) {
    for (Value& item : value.items()) visit(item);
  } else {
    expect_refused([&] { static_cast<void>(value.items()); });
  }
  if (value.is_object()) {
    for (auto& [key, member] : value.members()) {
      expect(value.find(key) == &member);
      visit(member);
    }
  } else {
    expect(value.find("a") == nullptr);
    expect_refused([&] { value.set("a", Value::real(0.5)); });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto keys = size % 2 == 0 ? onecard::json::DuplicateKeys::kReject
                                  : onecard::json::DuplicateKeys::kLastValueFirstPlace;
  Value value;
  try {
    value = onecard::json::parse(text, {.max_depth = 32, .duplicate_keys = keys});
  } catch (const onecard::Error& error) {
    expect(error.code() == onecard::ErrorCode::kInvalidArgument);
    return 0;
  }
  visit(value);
  const std::string once = onecard::json::dump(value);
  expect(onecard::json::dump(onecard::json::parse(once)) == once);
  if (value.is_object()) {
    value.set("added", Value::real(0.5));
    expect(value.find("added")->as_double() == 0.5);
  }
  return 0;
}
