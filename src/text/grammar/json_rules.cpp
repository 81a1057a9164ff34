#include "text/grammar/json_rules.h"

namespace onecard::text::grammar {

RuleId JsonRules::string() { return strings_.rule({}, Writing::kJson, ""); }

void JsonRules::add_digits(StateId from, size_t min_digits, size_t max_digits, StateId to) {
  for (size_t n = 0;; ++n) {
    if (n >= min_digits) builder_.add_jump(from, to);
    if (n == max_digits) return;
    const StateId next = builder_.add_state();
    builder_.add_edge(from, '0', '9', next);
    from = next;
  }
}

RuleId JsonRules::integer() {
  if (integer_) return *integer_;
  integer_ = builder_.add_rule();
  const StateId start = builder_.rule_start(*integer_);
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  const StateId minus = builder_.add_literal(start, "-");
  const StateId more = builder_.add_state();
  builder_.add_edge(start, '0', '0', end);
  builder_.add_edge(start, '1', '9', more);
  builder_.add_edge(minus, '1', '9', more);
  add_digits(more, 0, kMaxIntegerDigits - 1, end);
  return *integer_;
}

RuleId JsonRules::number() {
  if (number_) return *number_;
  number_ = builder_.add_rule();
  const StateId start = builder_.rule_start(*number_);
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  const StateId unsigned_part = builder_.add_state();
  const StateId whole = builder_.add_state();
  const StateId mantissa = builder_.add_state();
  builder_.add_jump(start, unsigned_part);
  builder_.add_literal(start, "-", unsigned_part);
  builder_.add_edge(unsigned_part, '0', '0', whole);
  const StateId more = builder_.add_state();
  builder_.add_edge(unsigned_part, '1', '9', more);
  add_digits(more, 0, kMaxIntegerDigits - 1, whole);
  builder_.add_jump(whole, mantissa);
  add_digits(builder_.add_literal(whole, "."), 1, kMaxFractionDigits, mantissa);
  builder_.add_jump(mantissa, end);
  const StateId exponent = builder_.add_state();
  builder_.add_edge(mantissa, 'e', 'e', exponent);
  builder_.add_edge(mantissa, 'E', 'E', exponent);
  const StateId exponent_digits = builder_.add_state();
  builder_.add_jump(exponent, exponent_digits);
  builder_.add_edge(exponent, '+', '+', exponent_digits);
  builder_.add_edge(exponent, '-', '-', exponent_digits);
  add_digits(exponent_digits, 1, kMaxExponentDigits, end);
  return *number_;
}

RuleId JsonRules::literal_rule(const char* text) {
  const RuleId rule = builder_.add_rule();
  builder_.set_accepting(builder_.add_literal(builder_.rule_start(rule), text));
  return rule;
}

RuleId JsonRules::null() {
  if (!null_) null_ = literal_rule("null");
  return *null_;
}

RuleId JsonRules::boolean() {
  if (boolean_) return *boolean_;
  boolean_ = builder_.add_rule();
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  builder_.add_literals(builder_.rule_start(*boolean_), {"true", "false"}, end);
  return *boolean_;
}

void JsonRules::add_elements(StateId open, StateId element, StateId behind, char close,
                             StateId end) {
  const auto bracket = static_cast<uint8_t>(close);
  builder_.add_edge(open, bracket, bracket, end);
  builder_.add_jump(open, element);
  builder_.add_literal(behind, ", ", element);
  builder_.add_edge(behind, bracket, bracket, end);
}

RuleId JsonRules::array() {
  if (array_) return *array_;
  array_ = builder_.add_rule();
  const StateId open = builder_.add_literal(builder_.rule_start(*array_), "[");
  const StateId item = builder_.add_state(), behind = builder_.add_state();
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  builder_.add_call(item, value(), behind);
  add_elements(open, item, behind, ']', end);
  return *array_;
}

RuleId JsonRules::object() {
  if (object_) return *object_;
  object_ = builder_.add_rule();
  const StateId open = builder_.add_literal(builder_.rule_start(*object_), "{");
  const StateId member = builder_.add_state(), behind = builder_.add_state();
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  const StateId key = builder_.add_called(member, string());
  builder_.add_call(builder_.add_literal(key, ": "), value(), behind);
  add_elements(open, member, behind, '}', end);
  return *object_;
}

void JsonRules::define_value(RuleId rule, bool with_string) {
  const StateId start = builder_.rule_start(rule);
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  if (with_string) builder_.add_call(start, string(), end);
  builder_.add_call(start, number(), end);
  builder_.add_literals(start, {"true", "false", "null"}, end);
  builder_.add_call(start, array(), end);
  builder_.add_call(start, object(), end);
}

RuleId JsonRules::value() {
  if (value_) return *value_;
  value_ = builder_.add_rule();
  define_value(*value_, true);
  return *value_;
}

RuleId JsonRules::value_no_string() {
  if (value_no_string_) return *value_no_string_;
  value_no_string_ = builder_.add_rule();
  define_value(*value_no_string_, false);
  return *value_no_string_;
}

}  // namespace onecard::text::grammar
