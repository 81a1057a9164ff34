#include "schema_validator.h"

#include <algorithm>
#include <cmath>
#include <functional>

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
  }
  if (instance.is_number()) {
    const double number = instance.as_double();
    if (number < number_or(schema, "minimum", -HUGE_VAL) ||
        number > number_or(schema, "maximum", HUGE_VAL) ||
        number <= number_or(schema, "exclusiveMinimum", -HUGE_VAL) ||
        number >= number_or(schema, "exclusiveMaximum", HUGE_VAL))
      return false;
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
      "a",    "b",      "Z",      " ",          "0", "\"", "\\", "/", "\n", "\x01",
      "\x7f", "\u00e9", "\u4e2d", "\U0001f600", ">", "{",  "}",  ",", ":"};
  std::string text;
  for (int64_t i = 0; i < length; ++i)
    text += kCharacters[size_t(between(random, 0, int64_t(kCharacters.size()) - 1))];
  return Value::string(text);
}

Value random_number(const Value& schema, bool integer, std::mt19937& random) {
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
  switch (between(random, 0, depth > 2 ? 6 : 10)) {
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
      if (random() % 2 == 0) schema.set("minimum", Value::integer(low));
      if (random() % 2 == 0) schema.set("maximum", Value::integer(low + between(random, 0, 300)));
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
