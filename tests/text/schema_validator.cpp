#include "schema_validator.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <regex>
#include <string_view>

namespace onecard::test {
namespace {

using json::Value;

const Value& resolve(const Value& root, const std::string& ref) {
  if (ref == "#") return root;
  return *root.find("$defs")->find(ref.substr(std::string("#/$defs/").size()));
}

bool has_type(const Value& instance, const std::string& type) {
  if (type == "null") return instance.is_null();
  if (type == "boolean") return instance.is_bool();
  if (type == "string") return instance.is_string();
  if (type == "array") return instance.is_array();
  if (type == "object") return instance.is_object();
  if (type == "number") return instance.is_number();
  return type == "integer" && instance.is_number() &&
         instance.as_double() == std::trunc(instance.as_double());
}

int64_t num_code_points(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

int64_t count_or(const Value& schema, const char* key, int64_t missing) {
  const Value* value = schema.find(key);
  return value ? *value->as_int64() : missing;
}

double number_or(const Value& schema, const char* key, double missing) {
  const Value* value = schema.find(key);
  return value ? value->as_double() : missing;
}

constexpr int64_t kMany = int64_t{1} << 40;

// Decimals as text, so that nothing is rounded.
struct Digits {
  bool negative = false;
  std::string whole, fraction;
};

Digits digits_of(const Value& number) {
  std::string text = number.lexeme();
  if (text.find_first_of("eE") != text.npos) {  // only of schemas and of numbers without bounds
    std::array<char, 400> plain;
    std::snprintf(plain.data(), plain.size(), "%.40f", number.as_double());
    text = plain.data();
  }
  Digits digits;
  digits.negative = text[0] == '-';
  text.erase(0, digits.negative ? 1 : 0);
  const size_t point = std::min(text.find('.'), text.size());
  digits.whole = text.substr(0, point);
  if (point < text.size()) digits.fraction = text.substr(point + 1);
  digits.negative = digits.negative && text.find_first_of("123456789") != text.npos;
  return digits;
}

int compare(const Value& left, const Value& right) {
  Digits a = digits_of(left), b = digits_of(right);
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const size_t whole = std::max(a.whole.size(), b.whole.size());
  const size_t fraction = std::max(a.fraction.size(), b.fraction.size());
  for (Digits* digits : {&a, &b}) {
    digits->whole.insert(0, whole - digits->whole.size(), '0');
    digits->fraction.resize(fraction, '0');
  }
  const int magnitude = (a.whole + a.fraction).compare(b.whole + b.fraction);
  return a.negative ? -magnitude : magnitude;
}

bool is_multiple(const Value& number, const Value& divisor) {
  Digits n = digits_of(number), d = digits_of(divisor);
  const size_t fraction = std::max(n.fraction.size(), d.fraction.size());
  n.fraction.resize(fraction, '0');
  d.fraction.resize(fraction, '0');
  const unsigned __int128 by = [&] {
    unsigned __int128 value = 0;
    for (const char c : d.whole + d.fraction) value = value * 10 + unsigned(c - '0');
    return value;
  }();
  unsigned __int128 rest = 0;
  for (const char c : n.whole + n.fraction) rest = (rest * 10 + unsigned(c - '0')) % by;
  return rest == 0;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == at)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

bool is_date(const std::string& text) {
  int year = 0, month = 0, day = 0, end = 0;
  if (text.size() != 10 ||
      std::sscanf(text.c_str(), "%4d-%2d-%2d%n", &year, &month, &day, &end) != 3)
    return false;
  return end == 10 && year > 0 &&
         std::chrono::year_month_day(std::chrono::year(year), std::chrono::month(unsigned(month)),
                                     std::chrono::day(unsigned(day)))
             .ok();
}

bool is_time(std::string text) {
  int hour = 99, minute = 99, second = 99, end = 0;
  if (std::sscanf(text.c_str(), "%2d:%2d:%2d%n", &hour, &minute, &second, &end) != 3 || end != 8)
    return false;
  text.erase(0, 8);
  if (text.starts_with('.')) {
    const size_t zone = text.find_first_not_of("0123456789", 1);
    if (zone == 1 || zone == text.npos) return false;
    text.erase(0, zone);
  }
  if (hour > 23 || minute > 59 || second > 59) return false;
  if (text == "Z" || text == "z") return true;
  char sign = 0;
  if (std::sscanf(text.c_str(), "%c%2d:%2d%n", &sign, &hour, &minute, &end) != 3) return false;
  return text.size() == 6 && end == 6 && (sign == '+' || sign == '-') && hour < 24 && minute < 60;
}

bool is_host_name(const std::string& text) {
  if (text.size() > 253) return false;
  for (const std::string& label : split(text, '.')) {
    if (label.empty() || label.size() > 63 || label[0] == '-' || label.back() == '-') return false;
    for (const char c : label)
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-') return false;
  }
  return true;
}

// Units that follow each other without a gap.
bool is_units(const std::string& text, const std::string& order) {
  size_t last = order.npos;
  for (size_t at = 0; at < text.size();) {
    const size_t unit = text.find_first_not_of("0123456789", at);
    if (unit == text.npos || unit == at) return false;
    const size_t place = order.find(text[unit]);
    if (place == order.npos || (last != order.npos && place != last + 1)) return false;
    last = place;
    at = unit + 1;
  }
  return true;
}

bool is_duration(const std::string& text) {
  if (!text.starts_with('P')) return false;
  const std::vector<std::string> parts = split(text.substr(1), 'T');
  if (parts.size() == 1 && !parts[0].empty() && parts[0].back() == 'W')
    return is_units(parts[0], "W");
  if (parts.size() > 2 || (parts.size() == 2 && parts[1].empty())) return false;
  if (parts.size() == 1 && parts[0].empty()) return false;
  return is_units(parts[0], "YMD") && (parts.size() == 1 || is_units(parts[1], "HMS"));
}

bool has_format(const std::string& text, const std::string& format) {
  std::array<char, 16> address;
  if (format == "date") return is_date(text);
  if (format == "time") return is_time(text);
  if (format == "date-time")
    return text.size() > 10 && is_date(text.substr(0, 10)) &&
           (text[10] == 'T' || text[10] == 't') && is_time(text.substr(11));
  if (format == "duration") return is_duration(text);
  if (format == "hostname") return is_host_name(text);
  if (format == "ipv4") return inet_pton(AF_INET, text.c_str(), address.data()) == 1;
  if (format == "ipv6") return inet_pton(AF_INET6, text.c_str(), address.data()) == 1;
  if (format == "email") {
    const std::vector<std::string> parts = split(text, '@');
    if (parts.size() != 2 || text.size() > 254 || !is_host_name(parts[1])) return false;
    for (const std::string& atom : split(parts[0], '.'))
      if (atom.empty() || atom.find_first_of(" ()<>,;:\\\"[]@") != atom.npos) return false;
    return true;
  }
  if (format == "uuid") {
    constexpr std::string_view kShape = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    return text.size() == kShape.size() &&
           std::equal(text.begin(), text.end(), kShape.begin(), [](char c, char shape) {
             return shape == '-' ? c == '-' : std::isxdigit(static_cast<unsigned char>(c)) != 0;
           });
  }
  return false;
}

// wchar_t holds any of them here, so that a regular expression sees characters and not bytes.
std::wstring code_points(const std::string& utf8) {
  std::wstring out;
  for (const char c : utf8) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0) != 0x80)
      out += static_cast<wchar_t>(byte < 0x80 ? byte
                                              : byte & (byte < 0xe0   ? 0x1f
                                                        : byte < 0xf0 ? 0x0f
                                                                      : 0x07));
    else
      out.back() = static_cast<wchar_t>(out.back() << 6 | (byte & 0x3f));
  }
  return out;
}

// Unlike dump(), 1.0 and 1 are one value.
bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  return json::dump(a) == json::dump(b);
}

}  // namespace

bool is_valid(const Value& instance, const Value& schema, const Value& root) {
  if (schema.is_bool()) return schema.as_bool();
  if (const Value* ref = schema.find("$ref"))
    return is_valid(instance, resolve(root, ref->as_string()), root);
  if (const Value* any = schema.find("anyOf"))
    return std::any_of(any->items().begin(), any->items().end(),
                       [&](const Value& branch) { return is_valid(instance, branch, root); });
  if (const Value* values = schema.find("enum"))
    if (std::none_of(values->items().begin(), values->items().end(),
                     [&](const Value& value) { return equal(value, instance); }))
      return false;
  if (const Value* value = schema.find("const"))
    if (!equal(*value, instance)) return false;
  if (const Value* type = schema.find("type")) {
    if (type->is_string()) {
      if (!has_type(instance, type->as_string())) return false;
    } else if (std::none_of(type->items().begin(), type->items().end(), [&](const Value& name) {
                 return has_type(instance, name.as_string());
               })) {
      return false;
    }
  }
  if (instance.is_string()) {
    const int64_t length = num_code_points(instance.as_string());
    if (length < count_or(schema, "minLength", 0) || length > count_or(schema, "maxLength", kMany))
      return false;
    if (const Value* pattern = schema.find("pattern"))
      if (!std::regex_search(code_points(instance.as_string()),
                             std::wregex(code_points(pattern->as_string()))))
        return false;
    if (const Value* format = schema.find("format"))
      if (!has_format(instance.as_string(), format->as_string())) return false;
  }
  if (instance.is_number()) {
    const auto bound = [&](const char* keyword, auto holds) {
      const Value* value = schema.find(keyword);
      return !value || holds(compare(instance, *value));
    };
    if (!bound("minimum", [](int order) { return order >= 0; }) ||
        !bound("maximum", [](int order) { return order <= 0; }) ||
        !bound("exclusiveMinimum", [](int order) { return order > 0; }) ||
        !bound("exclusiveMaximum", [](int order) { return order < 0; }))
      return false;
    if (const Value* divisor = schema.find("multipleOf"))
      if (!is_multiple(instance, *divisor)) return false;
  }
  if (instance.is_array()) {
    const auto size = int64_t(instance.items().size());
    if (size < count_or(schema, "minItems", 0) || size > count_or(schema, "maxItems", kMany))
      return false;
    if (const Value* items = schema.find("items"))
      for (const Value& item : instance.items())
        if (!is_valid(item, *items, root)) return false;
  }
  if (instance.is_object()) {
    const Value* properties = schema.find("properties");
    const Value* additional = schema.find("additionalProperties");
    for (const json::Member& member : instance.members()) {
      const Value* property = properties ? properties->find(member.first) : nullptr;
      if (!property) property = additional;
      if (property && !is_valid(member.second, *property, root)) return false;
    }
    if (const Value* required = schema.find("required"))
      for (const Value& name : required->items())
        if (!instance.find(name.as_string())) return false;
  }
  return true;
}

namespace {

int64_t between(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

Value random_string(std::mt19937& random, int64_t length) {
  static const std::vector<std::string> kCharacters = {
      "a",      "b",      "Z",          " ", "0", "\"", "\\", "/", "\n", "\x01",  "\x7f",
      "\u00e9", "\u4e2d", "\U0001f600", ">", "{", "}",  ",",  ":", "<",  "\uff5c"};
  std::string text;
  for (int64_t i = 0; i < length; ++i)
    text += kCharacters[size_t(between(random, 0, int64_t(kCharacters.size()) - 1))];
  return Value::string(text);
}

// Patterns and formats with strings that they have.
struct Kind {
  const char* keyword;
  const char* value;
  std::vector<std::string> instances;
};

const std::vector<Kind>& string_kinds() {
  static const std::vector<Kind> kinds = {
      {"pattern", "^[a-c]{2,5}$", {"ab", "ccccc", "abc"}},
      {"pattern", "^(red|green)? ?[0-9]+$", {"red 7", "12", "green123", " 0"}},
      {"pattern", "b.*d", {"bd", "abcde", "b<d", "</bxx\"d>"}},
      {"pattern", "^[^a]+$", {"\n", "<<", "\"\\", "xyz", "\u4e2d"}},
      {"pattern", "^(?:[A-Z]\\d)*$", {"", "A1", "Z9Z9"}},
      {"format", "date", {"2024-02-29", "1999-12-31"}},
      {"format", "time", {"00:00:00Z", "23:59:59.5-08:00"}},
      {"format", "date-time", {"1985-04-12T23:20:50.52Z"}},
      {"format", "duration", {"P3Y6M4DT12H30M5S", "PT0S", "P4W"}},
      {"format", "email", {"a.b+c@example.org", "x@localhost"}},
      {"format", "hostname", {"example.org", "a-1.b"}},
      {"format", "ipv4", {"127.0.0.1", "255.255.255.255"}},
      {"format", "ipv6", {"::1", "2001:db8::7", "1:2:3:4:5:6:7:8", "::ffff:10.0.0.1"}},
      {"format", "uuid", {"123e4567-e89b-12d3-a456-426614174000"}}};
  return kinds;
}

Value random_multiple(const Value& divisor, std::mt19937& random) {
  const Digits digits = digits_of(divisor);
  const int64_t unit = std::stoll(digits.whole + digits.fraction);
  const int64_t value = unit * between(random, -999, 999);
  std::string text = std::to_string(std::abs(value));
  if (text.size() <= digits.fraction.size())
    text.insert(0, digits.fraction.size() + 1 - text.size(), '0');
  std::string fraction = text.substr(text.size() - digits.fraction.size());
  text.resize(text.size() - fraction.size());
  fraction.erase(fraction.find_last_not_of('0') + 1);
  if (!fraction.empty()) text += "." + fraction;
  return Value::number_lexeme(value < 0 ? "-" + text : text);
}

Value random_number(const Value& schema, bool integer, std::mt19937& random) {
  if (const Value* divisor = schema.find("multipleOf")) return random_multiple(*divisor, random);
  int64_t low = -1000, high = 1000;
  if (schema.find("minimum")) low = int64_t(std::ceil(number_or(schema, "minimum", 0)));
  if (schema.find("exclusiveMinimum"))
    low = std::max(low, int64_t(std::floor(number_or(schema, "exclusiveMinimum", 0))) + 1);
  high = std::max(high, low);
  if (schema.find("maximum")) high = int64_t(std::floor(number_or(schema, "maximum", 0)));
  if (schema.find("exclusiveMaximum"))
    high = std::min(high, int64_t(std::ceil(number_or(schema, "exclusiveMaximum", 0))) - 1);
  if (!schema.find("minimum") && !schema.find("exclusiveMinimum")) low = std::min(low, high);
  const int64_t whole = between(random, low, high);
  if (integer || random() % 3 == 0) return Value::integer(whole);
  if (whole == high) return Value::integer(whole);
  return Value::real(double(whole) + double(between(random, 1, 999)) / 1000);
}

Value random_value(std::mt19937& random, int depth) {
  switch (between(random, 0, depth > 2 ? 4 : 6)) {
    case 0:
      return {};
    case 1:
      return Value::boolean(random() % 2 == 0);
    case 2:
      return random_string(random, between(random, 0, 6));
    case 3:
      return Value::integer(between(random, -5, 1'000'000'000'000));
    case 4:
      return Value::real(
          std::ldexp(double(between(random, -999999, 999999)), int(between(random, -40, 40))));
    case 5: {
      Value array = Value::array();
      for (int64_t n = between(random, 0, 3); n > 0; --n)
        array.items().push_back(random_value(random, depth + 1));
      return array;
    }
    default: {
      Value object = Value::object();
      for (int64_t n = between(random, 0, 3); n > 0; --n)
        object.set(random_string(random, between(random, 0, 3)).as_string(),
                   random_value(random, depth + 1));
      return object;
    }
  }
}

}  // namespace

Value random_instance(const Value& schema, const Value& root, std::mt19937& random, int depth) {
  if (schema.is_bool()) return random_value(random, depth);
  if (const Value* ref = schema.find("$ref"))
    return random_instance(resolve(root, ref->as_string()), root, random, depth + 1);
  if (const Value* any = schema.find("anyOf")) {
    const int64_t branch = depth > 6 ? 0 : between(random, 0, int64_t(any->items().size()) - 1);
    return random_instance(any->items()[size_t(branch)], root, random, depth + 1);
  }
  if (const Value* values = schema.find("enum"))
    return values->items()[size_t(between(random, 0, int64_t(values->items().size()) - 1))];
  if (const Value* value = schema.find("const")) return *value;
  const Value* types = schema.find("type");
  if (!types) return random_value(random, depth);
  const std::string type =
      types->is_string()
          ? types->as_string()
          : types->items()[size_t(between(random, 0, int64_t(types->items().size()) - 1))]
                .as_string();
  if (type == "null") return {};
  if (type == "boolean") return Value::boolean(random() % 2 == 0);
  if (type == "integer" || type == "number")
    return random_number(schema, type == "integer", random);
  if (type == "string") {
    for (const Kind& kind : string_kinds())
      if (const Value* value = schema.find(kind.keyword))
        if (value->as_string() == kind.value)
          return Value::string(
              kind.instances[size_t(between(random, 0, int64_t(kind.instances.size()) - 1))]);
    const int64_t low = count_or(schema, "minLength", 0);
    return random_string(random, between(random, low, count_or(schema, "maxLength", low + 8)));
  }
  if (type == "array") {
    const int64_t low = count_or(schema, "minItems", 0);
    Value array = Value::array();
    const Value anything = Value::boolean(true);
    const Value* items = schema.find("items");
    for (int64_t n = between(random, low, count_or(schema, "maxItems", depth > 6 ? low : low + 2));
         n > 0; --n)
      array.items().push_back(random_instance(items ? *items : anything, root, random, depth + 1));
    return array;
  }
  Value object = Value::object();
  if (const Value* properties = schema.find("properties")) {
    const Value* required = schema.find("required");
    for (const json::Member& property : properties->members()) {
      const bool needed =
          required && std::any_of(required->items().begin(), required->items().end(),
                                  [&](const Value& n) { return n.as_string() == property.first; });
      if (needed || (depth <= 6 && random() % 2 == 0))
        object.set(property.first, random_instance(property.second, root, random, depth + 1));
    }
  } else {
    const Value anything = Value::boolean(true);
    const Value* additional = schema.find("additionalProperties");
    if (!additional || !additional->is_bool() || additional->as_bool())
      for (int64_t n = between(random, 0, 2); n > 0; --n)
        object.set(random_string(random, between(random, 0, 3)).as_string(),
                   random_instance(additional ? *additional : anything, root, random, depth + 1));
  }
  return object;
}

Value random_schema(std::mt19937& random, int depth) {
  const auto string = [](const char* text) { return Value::string(text); };
  const auto typed = [&](const char* type) { return Value::object({{"type", string(type)}}); };
  switch (between(random, -2, depth > 2 ? 6 : 10)) {
    case -2: {
      const Kind& kind =
          string_kinds()[size_t(between(random, 0, int64_t(string_kinds().size()) - 1))];
      Value schema = typed("string");
      schema.set(kind.keyword, string(kind.value));
      return schema;
    }
    case -1: {
      Value schema = typed("number");
      constexpr std::array<const char*, 6> kDivisors = {"3", "0.25", "100", "0.01", "1.5", "7"};
      schema.set("multipleOf",
                 Value::number_lexeme(
                     kDivisors[size_t(between(random, 0, int64_t(kDivisors.size()) - 1))]));
      return schema;
    }
    case 0: {
      Value schema = typed("string");
      if (random() % 2 == 0) {
        const int64_t low = between(random, 0, 4);
        if (random() % 2 == 0) schema.set("minLength", Value::integer(low));
        if (random() % 2 == 0) schema.set("maxLength", Value::integer(low + between(random, 0, 9)));
      }
      return schema;
    }
    case 1: {
      Value schema = typed("integer");
      const int64_t low = between(random, -1200, 1200);
      if (random() % 2 == 0)
        schema.set(random() % 2 == 0 ? "minimum" : "exclusiveMinimum", Value::integer(low));
      if (random() % 2 == 0)
        schema.set(random() % 2 == 0 ? "maximum" : "exclusiveMaximum",
                   Value::integer(low + between(random, 2, 3000)));
      return schema;
    }
    case 2: {
      Value schema = typed("number");
      const int64_t low = between(random, -12, 12);
      const bool fraction = random() % 2 == 0;
      const auto bound = [&](int64_t value) {
        return fraction ? Value::real(double(value) + 0.375) : Value::integer(value);
      };
      if (random() % 2 == 0)
        schema.set(random() % 2 == 0 ? "minimum" : "exclusiveMinimum", bound(low));
      if (random() % 2 == 0)
        schema.set(random() % 2 == 0 ? "maximum" : "exclusiveMaximum",
                   bound(low + between(random, 2, 300)));
      return schema;
    }
    case 3:
      return typed(random() % 2 == 0 ? "boolean" : "null");
    case 4:
      return Value::object(
          {{"enum", Value::array({string("red"), string("re\"d"), Value::integer(7), Value(),
                                  Value::array({Value::integer(1)})})}});
    case 5:
      return Value::object({{"const", string("fixed")}});
    case 6:
      return Value::object({{"type", Value::array({string("string"), string("null")})}});
    case 7: {
      Value schema = typed("array");
      schema.set("items", random_schema(random, depth + 1));
      if (random() % 2 == 0) schema.set("minItems", Value::integer(between(random, 0, 2)));
      if (random() % 2 == 0) schema.set("maxItems", Value::integer(between(random, 2, 4)));
      return schema;
    }
    case 8:
      return Value::object({{"anyOf", Value::array({random_schema(random, depth + 1),
                                                    random_schema(random, depth + 1)})}});
    default: {
      Value schema = typed("object");
      Value properties = Value::object(), required = Value::array();
      for (int64_t n = between(random, 0, 4); n > 0; --n) {
        const std::string name = std::string(1, char('a' + n)) + (random() % 4 == 0 ? "\\n" : "");
        properties.set(name, random_schema(random, depth + 1));
        if (random() % 2 == 0) required.items().push_back(Value::string(name));
      }
      schema.set("properties", std::move(properties));
      schema.set("required", std::move(required));
      schema.set("additionalProperties", Value::boolean(false));
      return schema;
    }
  }
}

}  // namespace onecard::test
