// JSON in the style of CPython's json.dumps(v, ensure_ascii=False): the style in which the model
// has seen tool schemas and arguments.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace onecard::text {

/// ", " and ": " as separators, members in order, non-ASCII kept; a number written without '.' or
/// exponent keeps its digits, any other prints as Python's repr(float).
std::string python_dumps(const json::Value& value);
/// The same, appended to `out`.
void append_python_json(std::string& out, const json::Value& value);
/// Appends one string with its quotes (json::append_quoted: the two styles agree on strings).
void append_python_string(std::string& out, std::string_view text);

}  // namespace onecard::text
