#include "text/grammar/schema_compiler.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "text/grammar/string_format.h"
#include "text/python_json.h"

namespace onecard::text::grammar {
namespace {

using json::Value;

constexpr std::array<std::string_view, 22> kRefused = {
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
    "minProperties",
    "maxProperties",
    "$dynamicRef",
    "$recursiveRef",
};

// The types of which a keyword speaks.
struct Assertion {
  std::string_view keyword;
  std::string_view type;
};
constexpr std::array<Assertion, 15> kAssertions = {{{"properties", "object"},
                                                    {"required", "object"},
                                                    {"additionalProperties", "object"},
                                                    {"items", "array"},
                                                    {"minItems", "array"},
                                                    {"maxItems", "array"},
                                                    {"minLength", "string"},
                                                    {"maxLength", "string"},
                                                    {"pattern", "string"},
                                                    {"format", "string"},
                                                    {"minimum", "number"},
                                                    {"maximum", "number"},
                                                    {"exclusiveMinimum", "number"},
                                                    {"exclusiveMaximum", "number"},
                                                    {"multipleOf", "number"}}};

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
  // Keywords that say everything about a value stand alone, but for a type next to a list of
  // values.
  for (const std::string_view whole : {"$ref", "anyOf", "enum", "const"}) {
    if (!has(whole)) continue;
    const auto refuse_next_to_it = [&](std::string_view keyword) {
      if (keyword != whole && has(keyword))
        unsupported(place.where,
                    std::string(keyword) + " next to " + std::string(whole) + " is not supported");
    };
    for (const std::string_view other : {"$ref", "anyOf", "enum", "const"})
      refuse_next_to_it(other);
    if (whole == "$ref" || whole == "anyOf") refuse_next_to_it("type");
    for (const Assertion& assertion : kAssertions) refuse_next_to_it(assertion.keyword);
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
    std::vector<std::string> types;
    for (const Assertion& assertion : kAssertions)
      if (place.schema.find(assertion.keyword) &&
          std::find(types.begin(), types.end(), assertion.type) == types.end())
        types.emplace_back(assertion.type);
    return types;
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

std::optional<uint32_t> SchemaCompiler::count(const Place& place, const char* keyword) const {
  const Value* value = place.schema.find(keyword);
  if (!value) return std::nullopt;
  const auto number = value->is_number() ? Decimal::parse(value->lexeme()) : std::nullopt;
  if (!value->is_number() || (number && (number->negative || !number->fraction.empty())))
    invalid(place.where, std::string(keyword) + ": has to be a whole number that is not negative");
  constexpr size_t kMaxDigits = 9;
  if (!number || number->integer.size() > kMaxDigits)
    throw Error(ErrorCode::kResourceExhausted, place.where + ": " + keyword + " has more than " +
                                                   std::to_string(kMaxDigits) + " digits");
  uint32_t count = 0;
  for (const char digit : number->integer) count = count * 10 + static_cast<uint32_t>(digit - '0');
  return count;
}

StringLimits SchemaCompiler::string_limits_of(const Place& place) const {
  StringLimits limits;
  limits.min_length = count(place, "minLength").value_or(0);
  limits.max_length = count(place, "maxLength");
  if (limits.max_length && *limits.max_length < limits.min_length)
    invalid(place.where, "maxLength: is less than minLength");
  const auto text = [&](const char* keyword) -> std::optional<std::string> {
    const Value* value = place.schema.find(keyword);
    if (!value) return std::nullopt;
    if (!value->is_string()) invalid(place.where, std::string(keyword) + ": has to be a string");
    return value->as_string();
  };
  limits.pattern = text("pattern");
  limits.format = text("format");
  if (limits.format && !find_string_format(*limits.format))
    unsupported(place.where, "format " + json::quoted(*limits.format) + " is not supported");
  return limits;
}

NumberLimits SchemaCompiler::number_limits_of(const Place& place, bool integer) const {
  NumberLimits limits;
  limits.integer = integer;
  const auto decimal = [&](const char* keyword) -> std::optional<Decimal> {
    const Value* value = place.schema.find(keyword);
    if (!value) return std::nullopt;
    if (!value->is_number()) invalid(place.where, std::string(keyword) + ": has to be a number");
    const auto parsed = Decimal::parse(value->lexeme());
    if (!parsed)
      unsupported(place.where, std::string(keyword) +
                                   " with more than 30 digits on one side of "
                                   "its point is not supported");
    return parsed;
  };
  // Of an inclusive and an exclusive bound the tighter one counts.
  const auto bound = [&](const char* inclusive, const char* exclusive, bool low) {
    std::optional<NumberLimits::Bound> tightest;
    if (const auto value = decimal(inclusive)) tightest = {*value, true};
    if (const auto value = decimal(exclusive))
      if (!tightest || !(low ? less(*value, tightest->value) : less(tightest->value, *value)))
        tightest = {*value, false};
    return tightest;
  };
  limits.low = bound("minimum", "exclusiveMinimum", true);
  limits.high = bound("maximum", "exclusiveMaximum", false);
  if (limits.low && limits.high && less(limits.high->value, limits.low->value))
    invalid(place.where, "no number lies between its bounds");
  limits.multiple_of = decimal("multipleOf");
  if (limits.multiple_of && (limits.multiple_of->negative || limits.multiple_of->is_zero()))
    invalid(place.where, "multipleOf: has to be more than 0");
  return limits;
}

void SchemaCompiler::define_type(const std::string& type, StateId start, StateId end,
                                 const Place& place) {
  if (type == "object") return define_object(start, end, place);
  if (type == "array") return define_array(start, end, place);
  RuleId rule = 0;
  if (type == "string") {
    rule = json_.strings().rule(string_limits_of(place), Writing::kJson, place.where);
  } else if (type == "number" || type == "integer") {
    const bool integer = type == "integer";
    const NumberLimits limits = number_limits_of(place, integer);
    if (limits.any())
      rule = add_number_rule(builder_, limits);
    else
      rule = integer ? json_.integer() : json_.number();
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
      if (added) {
        // Not among the properties: what is said of all others holds for it.
        const Value* schema = place.schema.find("additionalProperties");
        properties.push_back(
            {name.as_string(), schema, place.where + ".additionalProperties", true});
      }
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
    const StateId key = builder_.add_called(member, json_.string());
    builder_.add_call(builder_.add_literal(key, ": "), value, behind);
    return json_.add_elements(none_yet, member, behind, '}', end);
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
  const uint32_t min = count(place, "minItems").value_or(0);
  const std::optional<uint32_t> max = count(place, "maxItems");
  if (max && *max < min) invalid(place.where, "maxItems: is less than minItems");
  StateId state = builder_.add_literal(start, "[");
  for (uint32_t n = 0;; ++n) {
    if (n >= min) builder_.add_edge(state, ']', ']', end);
    if (max && n == *max) return;
    const StateId before = n == 0 ? state : builder_.add_literal(state, ", ");
    if (!max && n > 0 && n >= min) {
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
      parts.strings.push_back(string_limits_of(place));
      continue;
    }
    parts.others.push_back(builder_.add_rule());
    const StateId end = builder_.add_state();
    builder_.set_accepting(end);
    define_type(type, builder_.rule_start(parts.others.back()), end, place);
  }
}

}  // namespace onecard::text::grammar
