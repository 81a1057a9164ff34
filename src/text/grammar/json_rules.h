// The rules that every JSON grammar shares. Style: no white space but ", " between elements and ":
// " behind keys, which is how the model's tool arguments are written.
#pragma once

#include <cstddef>
#include <optional>

#include "text/grammar/automaton.h"
#include "text/grammar/number_rule.h"
#include "text/grammar/string_rules.h"

namespace onecard::text::grammar {

/// Makes rules when they are first asked for.
class JsonRules {
 public:
  /// `max_work`: see StringRules.
  JsonRules(AutomatonBuilder& builder, size_t max_work)
      : builder_(builder), strings_(builder, max_work) {}

  StringRules& strings() { return strings_; }
  RuleId string();
  RuleId number();
  RuleId integer();
  RuleId boolean();
  RuleId null();
  RuleId array();            // of anything
  RuleId object();           // of anything
  RuleId value();            // anything
  RuleId value_no_string();  // anything but a string

  /// A list up to its closing bracket, behind the opening one in `open`. An element leads from
  /// `element` to `behind`.
  void add_elements(StateId open, StateId element, StateId behind, char close, StateId end);

 private:
  void add_digits(StateId from, size_t min_digits, size_t max_digits, StateId to);
  RuleId literal_rule(const char* text);
  void define_value(RuleId rule, bool with_string);

  AutomatonBuilder& builder_;
  StringRules strings_;
  std::optional<RuleId> number_, integer_, boolean_, null_, array_, object_, value_,
      value_no_string_;
};

}  // namespace onecard::text::grammar
