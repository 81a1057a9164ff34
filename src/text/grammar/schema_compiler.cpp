#include "text/grammar/schema_compiler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "text/python_json.h"

namespace onecard::text::grammar {
namespace {

using json::Value;

constexpr std::array<std::string_view, 24> kRefused = {
    "allOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "dependentRequired",
    "dependencies",
    "patternProperties",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "minContains",
    "maxContains",
    "prefixItems",
    "additionalItems",
    "multipleOf",
    "minProperties",
    "maxProperties",
    "pattern",
    "$dynamicRef",
    "$recursiveRef",
};

// Assertions: what may not stand next to a keyword that already says everything.
constexpr std::array<std::string_view, 16> kAssertions = {"type",       "enum",
                                                          "const",      "anyOf",
                                                          "properties", "additionalProperties",
                                                          "required",   "items",
                                                          "minItems",   "maxItems",
                                                          "minimum",    "exclusiveMinimum",
                                                          "maximum",    "exclusiveMaximum",
                                                          "minLength",  "maxLength"};

// Looking a member up is linear in their number; more are refused before that costs.
constexpr size_t kMaxMembers = 10'000;

constexpr std::array<std::string_view, 7> kTypes = {"object",  "array",   "string", "number",
                                                    "integer", "boolean", "null"};

[[noreturn]] void invalid(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, where + ": " + what);
}

[[noreturn]] void unsupported(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, where + ": " + what);
}

std::string_view type_of(const Value& value) {
  switch (value.kind()) {
    case json::Kind::kNull:
      return "null";
    case json::Kind::kBool:
      return "boolean";
    case json::Kind::kNumber:
      return value.is_integer() ? "integer" : "number";
    case json::Kind::kString:
      return "string";
    case json::Kind::kArray:
      return "array";
    case json::Kind::kObject:
      return "object";
  }
  return "";
}

bool has_type(const Value& value, const std::vector<std::string>& types) {
  const std::string_view type = type_of(value);
  return std::any_of(types.begin(), types.end(), [&](const std::string& allowed) {
    return allowed == type || (allowed == "number" && type == "integer");
  });
}

}  // namespace

SchemaCompiler::SchemaCompiler(const Value& root, std::string where, const GrammarLimits& limits,
                               AutomatonBuilder& builder, JsonRules& json)
    : root_(root), where_(std::move(where)), limits_(limits), builder_(builder), json_(json) {}

RuleId SchemaCompiler::compile() { return rule_of(root_, where_, 0); }

RuleId SchemaCompiler::rule_of(const Value& schema, const std::string& where, int depth) {
  const auto [found, added] = rules_.try_emplace(&schema, 0);
  if (!added) return found->second;
  const RuleId rule = builder_.add_rule();
  found->second = rule;
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  define(builder_.rule_start(rule), end, {schema, where, depth});
  return rule;
}

void SchemaCompiler::check_depth(const Place& place) const {
  if (place.depth > limits_.max_schema_depth)
    throw Error(ErrorCode::kResourceExhausted, place.where + ": nested deeper than " +
                                                   std::to_string(limits_.max_schema_depth) +
                                                   " schemas");
}

void SchemaCompiler::check_keywords(const Place& place) const {
  check_depth(place);
  if (!place.schema.is_object()) invalid(place.where, "a schema has to be an object or a boolean");
  const auto has = [&](std::string_view keyword) { return place.schema.find(keyword) != nullptr; };
  for (const std::string_view keyword : kRefused)
    if (has(keyword)) unsupported(place.where, std::string(keyword) + " is not supported");
  if (const Value* unique = place.schema.find("uniqueItems"))
    if (!unique->is_bool() || unique->as_bool())
      unsupported(place.where, "uniqueItems is not supported");
  for (const std::string_view whole : {"$ref", "anyOf"}) {
    if (!has(whole)) continue;
    for (const std::string_view keyword : kAssertions)
      if (keyword != whole && has(keyword))
        unsupported(place.where,
                    std::string(keyword) + " next to " + std::string(whole) + " is not supported");
  }
}

const Value& SchemaCompiler::resolve(const std::string& ref, const std::string& where) const {
  if (!ref.starts_with("#")) unsupported(where, "$ref \"" + ref + "\" leads out of the schema");
  const Value* value = &root_;
  for (size_t begin = 1; begin < ref.size();) {
    if (ref[begin] != '/') unsupported(where, "$ref \"" + ref + "\" is not a JSON pointer");
    const size_t end = std::min(ref.find('/', begin + 1), ref.size());
    std::string key;
    for (size_t i = begin + 1; i < end; ++i) {
      if (ref[i] == '~' && i + 1 < end) {
        key += ref[++i] == '1' ? '/' : '~';
      } else {
        key += ref[i];
      }
    }
    if (value->is_object() && value->members().size() > kMaxMembers)
      throw Error(ErrorCode::kResourceExhausted,
                  where + ": more than " + std::to_string(kMaxMembers) + " definitions");
    value = value->find(key);
    if (!value) invalid(where, "$ref \"" + ref + "\" leads to nothing");
    begin = end;
  }
  return *value;
}

std::vector<std::string> SchemaCompiler::types_of(const Place& place) const {
  const auto known = [&](const Value& value) {
    if (!value.is_string() ||
        std::find(kTypes.begin(), kTypes.end(), value.as_string()) == kTypes.end())
      invalid(place.where, "type: " + json::dump(value) + " is no type of JSON");
    return value.as_string();
  };
  const Value* type = place.schema.find("type");
  if (!type) {
    // What is said about members or elements is meant for objects or arrays.
    if (place.schema.find("properties")) return {"object"};
    if (place.schema.find("items")) return {"array"};
    return {};
  }
  if (!type->is_array()) return {known(*type)};
  std::vector<std::string> types;
  for (const Value& item : type->items()) {
    types.push_back(known(item));
    if (std::count(types.begin(), types.end(), types.back()) > 1)
      invalid(place.where, "type: \"" + types.back() + "\" appears twice");
  }
  if (types.empty()) invalid(place.where, "type: an empty list");
  return types;
}

std::optional<std::vector<const Value*>> SchemaCompiler::fixed_values(const Place& place) const {
  const Value* list = place.schema.find("enum");
  const Value* constant = place.schema.find("const");
  if (!list && !constant) return std::nullopt;
  if (list && constant) unsupported(place.where, "const next to enum is not supported");
  std::vector<const Value*> values;
  const std::vector<std::string> types = types_of(place);
  const auto add = [&](const Value& value) {
    if (types.empty() || has_type(value, types)) values.push_back(&value);
  };
  if (constant) {
    add(*constant);
  } else {
    if (!list->is_array()) invalid(place.where, "enum: has to be a list");
    for (const Value& value : list->items()) add(value);
  }
  if (values.empty()) invalid(place.where, "no value is left that the schema allows");
  return values;
}

void SchemaCompiler::define(StateId start, StateId end, const Place& place) {
  if (place.schema.is_bool() && place.schema.as_bool()) {
    check_depth(place);
    return builder_.add_call(start, json_.value(), end);
  }
  if (place.schema.is_bool()) invalid(place.where, "the schema false allows nothing");
  check_keywords(place);
  if (const Value* ref = place.schema.find("$ref")) {
    if (!ref->is_string()) invalid(place.where, "$ref: has to be a string");
    const Value& target = resolve(ref->as_string(), place.where);
    return builder_.add_call(start, rule_of(target, ref->as_string(), place.depth + 1), end);
  }
  if (const Value* any = place.schema.find("anyOf")) {
    if (!any->is_array() || any->items().empty())
      invalid(place.where, "anyOf: has to be a list of schemas");
    for (size_t i = 0; i < any->items().size(); ++i)
      builder_.add_call(start,
                        rule_of(any->items()[i], place.where + ".anyOf[" + std::to_string(i) + "]",
                                place.depth + 1),
                        end);
    return;
  }
  if (const auto values = fixed_values(place)) {
    std::vector<std::string> texts;
    for (const Value* value : *values) texts.push_back(python_dumps(*value));
    return builder_.add_literals(start, texts, end);
  }
  const std::vector<std::string> types = types_of(place);
  if (types.empty()) return builder_.add_call(start, json_.value(), end);
  for (const std::string& type : types) define_type(type, start, end, place);
}

int64_t SchemaCompiler::count(const Place& place, const char* keyword, int64_t missing) const {
  const Value* value = place.schema.find(keyword);
  if (!value) return missing;
  const auto number = value->is_number() ? value->as_int64() : std::nullopt;
  if (!number || *number < 0)
    invalid(place.where, std::string(keyword) + ": has to be a whole number that is not negative");
  // More than the nodes that are left would be refused anyway, after making them.
  if (*number > static_cast<int64_t>(limits_.max_nodes))
    throw Error(ErrorCode::kResourceExhausted, place.where + ": " + keyword + " is more than " +
                                                   std::to_string(limits_.max_nodes));
  return *number;
}

SchemaCompiler::Parts::Length SchemaCompiler::length_of(const Place& place) const {
  Parts::Length length;
  length.min = count(place, "minLength", 0);
  if (place.schema.find("maxLength")) length.max = count(place, "maxLength", 0);
  if (length.max && *length.max < length.min)
    invalid(place.where, "maxLength: is less than minLength");
  return length;
}

IntegerRange SchemaCompiler::range_of(const Place& place, bool integer) const {
  // Bounds on integers round inwards; those of other numbers have to be whole.
  const auto bound = [&](const char* keyword, bool lower) -> std::optional<int64_t> {
    const Value* value = place.schema.find(keyword);
    if (!value) return std::nullopt;
    if (!value->is_number()) invalid(place.where, std::string(keyword) + ": has to be a number");
    const double number = value->as_double();
    if (std::abs(number) > double(kMaxBoundedInteger))
      unsupported(place.where, std::string(keyword) + " beyond 10^18 is not supported");
    if (!integer && number != std::trunc(number))
      unsupported(place.where, std::string(keyword) + " that is not whole is not supported");
    if (const auto exact = value->as_int64()) return exact;
    return static_cast<int64_t>(lower ? std::ceil(number) : std::floor(number));
  };
  IntegerRange range = {bound("minimum", true), bound("maximum", false)};
  const auto exclude = [&](const char* keyword, bool lower, std::optional<int64_t>& limit) {
    const Value* value = place.schema.find(keyword);
    if (!value) return;
    if (!integer) unsupported(place.where, std::string(keyword) + " is supported for integers");
    // The nearest whole number beyond the excluded one.
    std::optional<int64_t> next = bound(keyword, lower);
    if (value->as_double() == double(*next)) *next += lower ? 1 : -1;
    if (!limit)
      limit = next;
    else
      limit = lower ? std::max(*limit, *next) : std::min(*limit, *next);
  };
  exclude("exclusiveMinimum", true, range.min);
  exclude("exclusiveMaximum", false, range.max);
  if (range.min && range.max && *range.min > *range.max)
    invalid(place.where, "no number lies between its bounds");
  return range;
}

void SchemaCompiler::define_type(const std::string& type, StateId start, StateId end,
                                 const Place& place) {
  if (type == "object") return define_object(start, end, place);
  if (type == "array") return define_array(start, end, place);
  RuleId rule = 0;
  if (type == "string") {
    const Parts::Length length = length_of(place);
    rule = length.min == 0 && !length.max ? json_.string() : json_.string(length.min, length.max);
  } else if (type == "number" || type == "integer") {
    const bool integer = type == "integer";
    const IntegerRange range = range_of(place, integer);
    if (!range.min && !range.max)
      rule = integer ? json_.integer() : json_.number();
    else
      rule = integer ? json_.integer(range) : json_.number(range);
  } else {
    rule = type == "boolean" ? json_.boolean() : json_.null();
  }
  builder_.add_call(start, rule, end);
}

std::vector<SchemaCompiler::Property> SchemaCompiler::properties_of(const Place& place) const {
  std::vector<Property> properties;
  std::unordered_map<std::string_view, size_t> places;
  if (const Value* members = place.schema.find("properties")) {
    if (!members->is_object()) invalid(place.where, "properties: has to be an object");
    for (const json::Member& member : members->members()) {
      places.emplace(member.first, properties.size());
      properties.push_back(
          {member.first, &member.second, place.where + ".properties." + member.first, false});
    }
  }
  if (const Value* required = place.schema.find("required")) {
    if (!required->is_array()) invalid(place.where, "required: has to be a list");
    for (const Value& name : required->items()) {
      if (!name.is_string()) invalid(place.where, "required: has to be a list of strings");
      const auto [found, added] = places.emplace(name.as_string(), properties.size());
      if (added) properties.push_back({name.as_string(), nullptr, place.where, true});
      properties[found->second].required = true;
    }
  }
  return properties;
}

// Members in the schema's order. Two chains of states, before and behind the first member that is
// written, since what separates members is written in front of all but the first.
void SchemaCompiler::define_object(StateId start, StateId end, const Place& place) {
  const std::vector<Property> properties = properties_of(place);
  const Value* additional = place.schema.find("additionalProperties");
  if (additional && !additional->is_bool() && !additional->is_object())
    invalid(place.where, "additionalProperties: has to be a schema");
  const bool open = additional ? additional->is_object() || additional->as_bool()
                               : !place.schema.find("properties");
  StateId none_yet = builder_.add_literal(start, "{");
  if (properties.empty() && open) {
    const RuleId value =
        additional && additional->is_object()
            ? rule_of(*additional, place.where + ".additionalProperties", place.depth + 1)
            : json_.value();
    const StateId member = builder_.add_state(), behind = builder_.add_state();
    builder_.add_edge(none_yet, '}', '}', end);
    builder_.add_jump(none_yet, member);
    const StateId key = builder_.add_called(member, json_.string());
    builder_.add_call(builder_.add_literal(key, ": "), value, behind);
    builder_.add_literal(behind, ", ", member);
    builder_.add_edge(behind, '}', '}', end);
    return;
  }
  StateId some = builder_.add_state();
  for (const Property& property : properties) {
    const RuleId value = property.schema
                             ? rule_of(*property.schema, property.where, place.depth + 1)
                             : json_.value();
    std::string key;
    append_python_string(key, property.name);
    const StateId next_none = builder_.add_state(), next_some = builder_.add_state();
    const StateId written = builder_.add_state();
    builder_.add_literal(none_yet, key + ": ", written);
    builder_.add_literal(some, ", " + key + ": ", written);
    builder_.add_call(written, value, next_some);
    if (!property.required) {
      builder_.add_jump(none_yet, next_none);
      builder_.add_jump(some, next_some);
    }
    none_yet = next_none;
    some = next_some;
  }
  builder_.add_edge(none_yet, '}', '}', end);
  builder_.add_edge(some, '}', '}', end);
}

void SchemaCompiler::define_array(StateId start, StateId end, const Place& place) {
  const Value* items = place.schema.find("items");
  const RuleId item =
      items ? rule_of(*items, place.where + ".items", place.depth + 1) : json_.value();
  const int64_t min = count(place, "minItems", 0);
  const bool bounded = place.schema.find("maxItems") != nullptr;
  const int64_t max = count(place, "maxItems", 0);
  if (bounded && max < min) invalid(place.where, "maxItems: is less than minItems");
  StateId state = builder_.add_literal(start, "[");
  for (int64_t n = 0;; ++n) {
    if (n >= min) builder_.add_edge(state, ']', ']', end);
    if (bounded && n == max) return;
    const StateId before = n == 0 ? state : builder_.add_literal(state, ", ");
    if (!bounded && n > 0 && n >= min) {
      builder_.add_call(before, item, state);
      return;
    }
    state = builder_.add_called(before, item);
  }
}

std::vector<SchemaCompiler::Property> SchemaCompiler::root_properties() {
  const Place place{root_, where_, 0};
  if (!root_.is_object()) invalid(where_, "has to be an object");
  check_keywords(place);
  const std::vector<std::string> types = types_of(place);
  if (root_.find("$ref") || root_.find("anyOf") || root_.find("enum") || root_.find("const") ||
      (!types.empty() && types != std::vector<std::string>{"object"}))
    unsupported(where_, "has to be the schema of an object");
  return properties_of(place);
}

SchemaCompiler::Parts SchemaCompiler::split(const Property& property) {
  Parts parts;
  if (property.schema) {
    split(*property.schema, property.where, 1, parts);
  } else {
    parts.strings.emplace_back();
    parts.others.push_back(json_.value_no_string());
  }
  return parts;
}

void SchemaCompiler::split(const Value& schema, const std::string& where, int depth, Parts& parts) {
  // Definitions are written out here wherever they are referred to, so their number is bounded.
  if (++num_splits_ > limits_.max_nodes)
    throw Error(ErrorCode::kResourceExhausted, where + ": too many alternatives");
  const Place place{schema, where, depth};
  const bool anything = schema.is_bool() && schema.as_bool();
  if (!anything) {
    if (schema.is_bool()) invalid(where, "the schema false allows nothing");
    check_keywords(place);
    if (const Value* ref = schema.find("$ref")) {
      if (!ref->is_string()) invalid(where, "$ref: has to be a string");
      return split(resolve(ref->as_string(), where), ref->as_string(), depth + 1, parts);
    }
    if (const Value* any = schema.find("anyOf")) {
      if (!any->is_array() || any->items().empty())
        invalid(where, "anyOf: has to be a list of schemas");
      for (size_t i = 0; i < any->items().size(); ++i)
        split(any->items()[i], where + ".anyOf[" + std::to_string(i) + "]", depth + 1, parts);
      return;
    }
    if (const auto values = fixed_values(place)) {
      std::vector<std::string> texts;
      for (const Value* value : *values) {
        if (value->is_string())
          parts.literals.push_back(value->as_string());
        else
          texts.push_back(python_dumps(*value));
      }
      if (texts.empty()) return;
      parts.others.push_back(builder_.add_rule());
      const StateId end = builder_.add_state();
      builder_.set_accepting(end);
      return builder_.add_literals(builder_.rule_start(parts.others.back()), texts, end);
    }
  }
  const std::vector<std::string> types = anything ? std::vector<std::string>() : types_of(place);
  if (types.empty()) {
    parts.strings.emplace_back();
    parts.others.push_back(json_.value_no_string());
    return;
  }
  for (const std::string& type : types) {
    if (type == "string") {
      parts.strings.push_back(length_of(place));
      continue;
    }
    parts.others.push_back(builder_.add_rule());
    const StateId end = builder_.add_state();
    builder_.set_accepting(end);
    define_type(type, builder_.rule_start(parts.others.back()), end, place);
  }
}

}  // namespace onecard::text::grammar
