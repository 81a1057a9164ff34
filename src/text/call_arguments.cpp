#include "text/call_arguments.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "text/python_json.h"

namespace onecard::text {
namespace {

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// The inside of a JSON string, of which pieces are escaped one by one.
void append_escaped(std::string_view text, std::string& out) {
  const bool plain = std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\';
  });
  if (plain) {
    out += text;
    return;
  }
  std::string quoted;
  append_python_string(quoted, text);
  out.append(quoted, 1, quoted.size() - 2);
}

// Nothing when the text is no JSON, or holds a number that is not finite.
std::optional<json::Value> parse_json(std::string_view text) {
  try {
    return json::parse(trim(text));
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The types that a schema allows, as far as it says so. What it does not say counts as a string,
// since a string is what the model marked.
struct Types {
  bool string = false;
  std::vector<std::string> others;
};

void collect_types(const json::Value& schema, int depth, Types& types) {
  constexpr int kMaxDepth = 16;
  if (const json::Value* type = schema.find("type")) {
    const auto add = [&](const json::Value& name) {
      if (!name.is_string() || name.as_string() == "string")
        types.string = true;
      else
        types.others.push_back(name.as_string());
    };
    if (!type->is_array()) return add(*type);
    for (const json::Value& name : type->items()) add(name);
    return;
  }
  const json::Value* any = schema.find("anyOf");
  if (!any) any = schema.find("oneOf");
  if (!any || !any->is_array() || any->items().empty() || depth == kMaxDepth) {
    types.string = true;
    return;
  }
  for (const json::Value& branch : any->items()) collect_types(branch, depth + 1, types);
}

Types allowed_types(const json::Value& schema) {
  Types types;
  collect_types(schema, 0, types);
  return types;
}

bool has_type(const json::Value& value, std::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_bool();
  if (type == "number") return value.is_number();
  if (type == "integer")
    return value.is_number() &&
           (value.is_integer() || value.as_double() == std::trunc(value.as_double()));
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  return false;
}

}  // namespace

CallArguments::CallArguments(const json::Value* schema, bool convert_by_schema)
    : properties_(schema ? schema->find("properties") : nullptr),
      convert_by_schema_(convert_by_schema) {
  if (properties_ && !properties_->is_object()) properties_ = nullptr;
}

const json::Value* CallArguments::property(std::string_view name) const {
  return properties_ ? properties_->find(name) : nullptr;
}

// May the text of a value that is marked as a string become something else?
bool CallArguments::converts(std::string_view name) const {
  if (!convert_by_schema_) return false;
  const json::Value* schema = property(name);
  return schema && !allowed_types(*schema).string;
}

void CallArguments::begin_parameter(std::string_view name, OpenTag::StringAttribute attribute,
                                    std::string& out) {
  settle_wrapper(out);
  const bool first = names_.empty();
  parameter_ = {std::string(name), attribute, {}};
  if (!names_.insert(parameter_.name).second) {
    mode_ = Mode::kIgnore;  // the first value of a name stays
  } else if (first && (name == "arguments" || name == "input") && properties_ &&
             !properties_->members().empty() && !property(name)) {
    mode_ = Mode::kMayWrap;
  } else if (attribute == OpenTag::StringAttribute::kTrue && !converts(name)) {
    mode_ = Mode::kStream;
    write_key(name, out);
    out += '"';
  } else {
    mode_ = Mode::kHold;
  }
}

void CallArguments::add_value(std::string_view text, std::string& out) {
  switch (mode_) {
    case Mode::kStream:
      append_escaped(text, out);
      return;
    case Mode::kHold:
    case Mode::kMayWrap:
      parameter_.text += text;
      return;
    case Mode::kIgnore:
      return;
  }
}

void CallArguments::end_parameter(std::string& out) {
  switch (mode_) {
    case Mode::kStream:
      out += '"';
      return;
    case Mode::kHold:
      write_held(parameter_, out);
      return;
    case Mode::kMayWrap:
      wrapper_pending_ = true;
      return;
    case Mode::kIgnore:
      return;
  }
}

void CallArguments::add_body(std::string_view text) {
  if (names_.empty()) body_ += text;
}

void CallArguments::end(std::string& out) {
  if (wrapper_pending_) {
    wrapper_pending_ = false;
    if (write_unwrapped(parameter_, out)) return;
    write_held(parameter_, out);
  }
  if (any_written_) {
    out += '}';
    return;
  }
  const std::string_view body = trim(body_);
  if (body.empty()) {
    out += "{}";
    return;
  }
  if (const auto object = parse_json(body); object && object->is_object()) {
    append_python_json(out, *object);
    return;
  }
  write_key("arguments", out);
  append_python_string(out, body);
  out += '}';
}

void CallArguments::write_key(std::string_view name, std::string& out) {
  out += any_written_ ? ", " : "{";
  any_written_ = true;
  append_python_string(out, name);
  out += ": ";
}

void CallArguments::write_held(const Parameter& parameter, std::string& out) {
  write_key(parameter.name, out);
  const auto value = parse_json(parameter.text);
  bool take = value.has_value();
  if (take && parameter.attribute == OpenTag::StringAttribute::kTrue) {
    take = false;
    if (converts(parameter.name))
      for (const std::string& type : allowed_types(*property(parameter.name)).others)
        take = take || has_type(*value, type);
  }
  if (take)
    append_python_json(out, *value);
  else
    append_python_string(out, parameter.text);
}

// A lone parameter whose value is an object with nothing but names of the schema in it: the model
// has wrapped its arguments once too often.
bool CallArguments::write_unwrapped(const Parameter& parameter, std::string& out) const {
  auto value = parse_json(parameter.text);
  if (value && value->is_string()) value = parse_json(value->as_string());
  if (!value || !value->is_object()) return false;
  for (const json::Member& member : value->members())
    if (!property(member.first)) return false;
  append_python_json(out, *value);
  return true;
}

// Another parameter follows: the one that might have wrapped all others is one of several.
void CallArguments::settle_wrapper(std::string& out) {
  if (!wrapper_pending_) return;
  wrapper_pending_ = false;
  write_held(parameter_, out);
}

}  // namespace onecard::text
