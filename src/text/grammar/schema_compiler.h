// JSON schemas to rules: the subset of draft 2020-12 that OpenAI's strict mode uses. What a schema
// asserts beyond it is refused by name; annotations are ignored. Instances are written in the style
// of json_rules.h, members in the schema's order; members that a schema does not name are not
// written.
//
//   type (one or several), enum, const, anyOf, $ref and $defs, also recursive
//   object: properties, required, additionalProperties (as a schema where nothing is named)
//   array:  items, minItems, maxItems
//   string: minLength, maxLength, pattern, format (those of string_format.h)
//   number, integer: minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf
//
// A schema without a type has those that its keywords speak of, and any when there are none.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/grammar/automaton.h"
#include "text/grammar/grammar.h"
#include "text/grammar/json_rules.h"

namespace onecard::text::grammar {

class SchemaCompiler {
 public:
  /// `root` and `builder` outlive this. `where` names the schema in messages, for instance
  /// "tools[0].function.parameters".
  SchemaCompiler(const json::Value& root, std::string where, const GrammarLimits& limits,
                 AutomatonBuilder& builder, JsonRules& json);

  /// The rule of the root's instances.
  RuleId compile();

  /// The members that the root, an object's schema, gives an instance.
  struct Property {
    std::string name;
    const json::Value* schema = nullptr;  // null: anything
    std::string where;
    bool required = false;
  };
  std::vector<Property> root_properties();

  /// A schema in parts: strings are written verbatim in tool markup, everything else as JSON.
  struct Parts {
    std::vector<StringLimits> strings;
    std::vector<std::string> literals;  // strings of an enum or const
    std::vector<RuleId> others;         // JSON that is no string
  };
  Parts split(const Property& property);

 private:
  struct Place {
    const json::Value& schema;
    const std::string& where;
    int depth;
  };

  RuleId rule_of(const json::Value& schema, const std::string& where, int depth);
  void define(StateId start, StateId end, const Place& place);
  void define_type(const std::string& type, StateId start, StateId end, const Place& place);
  void define_object(StateId start, StateId end, const Place& place);
  void define_array(StateId start, StateId end, const Place& place);
  void split(const json::Value& schema, const std::string& where, int depth, Parts& parts);
  void check_keywords(const Place& place) const;
  void check_depth(const Place& place) const;
  std::vector<Property> properties_of(const Place& place) const;
  const json::Value& resolve(const std::string& ref, const std::string& where) const;
  std::vector<std::string> types_of(const Place& place) const;
  std::optional<std::vector<const json::Value*>> fixed_values(const Place& place) const;
  StringLimits string_limits_of(const Place& place) const;
  NumberLimits number_limits_of(const Place& place, bool integer) const;
  std::optional<uint32_t> count(const Place& place, const char* keyword) const;

  const json::Value& root_;
  const std::string where_;
  const GrammarLimits limits_;
  AutomatonBuilder& builder_;
  JsonRules& json_;
  std::map<const json::Value*, RuleId> rules_;
  size_t num_splits_ = 0;
};

}  // namespace onecard::text::grammar
