#include "text/python_json.h"

#include <charconv>

namespace onecard::text {
namespace {

// repr(float): the shortest digits that read back as the same double; in positional form while the
// decimal exponent is in [-4, 16), with ".0" on whole numbers.
void append_python_float(std::string& out, double value) {
  char text[40];
  const char* end =
      std::to_chars(text, text + sizeof(text), value, std::chars_format::scientific).ptr;
  // "-d.ddde+XX": sign, digits, exponent of at least two digits with its sign, as Python prints it.
  std::string_view number(text, end - text);
  const size_t e = number.find('e');
  int exponent = 0;
  std::from_chars(text + e + 2, end, exponent);
  if (number[e + 1] == '-') exponent = -exponent;
  if (exponent < -4 || exponent >= 16) {
    out += number;
    return;
  }
  if (number.front() == '-') {
    out += '-';
    number.remove_prefix(1);
  }
  std::string digits;
  for (const char c : number.substr(0, number.find('e')))
    if (c != '.') digits += c;
  if (exponent < 0) {
    out += "0.";
    out.append(-exponent - 1, '0');
    out += digits;
    return;
  }
  const size_t whole = exponent + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  out.append(digits, 0, whole);
  out += '.';
  if (digits.size() > whole)
    out.append(digits, whole);
  else
    out += '0';
}

}  // namespace

void append_python_string(std::string& out, std::string_view text) {
  json::append_quoted(out, text);
}

void append_python_json(std::string& out, const json::Value& value) {
  switch (value.kind()) {
    case json::Kind::kNull:
      out += "null";
      return;
    case json::Kind::kBool:
      out += value.as_bool() ? "true" : "false";
      return;
    case json::Kind::kNumber:
      if (!value.is_integer())
        append_python_float(out, value.as_double());
      else
        out += value.lexeme() == "-0" ? "0" : value.lexeme();
      return;
    case json::Kind::kString:
      append_python_string(out, value.as_string());
      return;
    case json::Kind::kArray: {
      out += '[';
      const char* separator = "";
      for (const json::Value& item : value.items()) {
        out += separator;
        separator = ", ";
        append_python_json(out, item);
      }
      out += ']';
      return;
    }
    case json::Kind::kObject: {
      out += '{';
      const char* separator = "";
      for (const json::Member& member : value.members()) {
        out += separator;
        separator = ", ";
        append_python_string(out, member.first);
        out += ": ";
        append_python_json(out, member.second);
      }
      out += '}';
      return;
    }
  }
}

std::string python_dumps(const json::Value& value) {
  std::string out;
  append_python_json(out, value);
  return out;
}

}  // namespace onecard::text
