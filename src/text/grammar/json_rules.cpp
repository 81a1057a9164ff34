#include "text/grammar/json_rules.h"

#include <algorithm>

#include "base/error.h"
#include "text/chat_tokens.h"

namespace onecard::text::grammar {

AutomatonBuilder::Machine json_string_machine() {
  using Machine = AutomatonBuilder::Machine;
  Machine machine = Machine::utf8("\"\\", 0x20);
  const int first = machine.num_states;
  const int escape = first, u = first + 1, hex2 = first + 2, hex3 = first + 3, hex4 = first + 4;
  // \ud800 to \udbff needs \udc00 to \udfff behind it.
  const int after_d = first + 5, high3 = first + 6, high4 = first + 7, pair = first + 8;
  const int pair_u = first + 9, pair_d = first + 10, pair_low = first + 11;
  machine.num_states = first + 12;
  const auto add = [&](int from, std::string_view bytes, int to) {
    for (const char c : bytes)
      machine.steps.push_back({from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to});
  };
  constexpr std::string_view kHex = "0123456789abcdefABCDEF";
  add(0, "\\", escape);
  add(escape, "\"\\/bfnrt", 0);
  add(escape, "u", u);
  add(u, "0123456789abcefABCEF", hex2);
  add(u, "dD", after_d);
  add(hex2, kHex, hex3);
  add(hex3, kHex, hex4);
  add(hex4, kHex, 0);
  add(after_d, "01234567", hex3);
  add(after_d, "89abAB", high3);
  add(high3, kHex, high4);
  add(high4, kHex, pair);
  add(pair, "\\", pair_u);
  add(pair_u, "u", pair_d);
  add(pair_d, "dD", pair_low);
  add(pair_low, "cdefCDEF", hex3);
  return machine;
}

std::vector<AutomatonBuilder::WordTarget> words_kept_out_of_strings() {
  return {{std::string(kThinkClose)},
          {std::string(kEos)},
          {std::string(kDsmlOpen)},
          {std::string(kDsmlClose)}};
}

RuleId JsonRules::string() {
  if (string_) return *string_;
  string_ = builder_.add_rule();
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  const StateId open = builder_.add_literal(builder_.rule_start(*string_), "\"");
  for (const StateId state :
       builder_.add_text(open, json_string_machine(), words_kept_out_of_strings()))
    builder_.add_edge(state, '"', '"', end);
  return *string_;
}

RuleId JsonRules::character() {
  if (character_) return *character_;
  character_ = builder_.add_rule();
  const AutomatonBuilder::Machine machine = json_string_machine();
  std::vector<StateId> states = {builder_.rule_start(*character_)};
  while (states.size() < static_cast<size_t>(machine.num_states))
    states.push_back(builder_.add_state());
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  for (const auto& step : machine.steps) {
    if (step.from == 0 && step.first == '<') continue;  // no tag begins in a counted string
    builder_.add_edge(states[static_cast<size_t>(step.from)], step.first, step.last,
                      step.to == 0 ? end : states[static_cast<size_t>(step.to)]);
  }
  return *character_;
}

RuleId JsonRules::string(int64_t min_length, std::optional<int64_t> max_length) {
  const RuleId rule = builder_.add_rule();
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  StateId state = builder_.add_literal(builder_.rule_start(rule), "\"");
  for (int64_t n = 0;; ++n) {
    if (n >= min_length) builder_.add_edge(state, '"', '"', end);
    if (max_length && n == *max_length) return rule;
    if (!max_length && n >= min_length) {
      builder_.add_call(state, character(), state);
      return rule;
    }
    state = builder_.add_called(state, character());
  }
}

void JsonRules::add_digits(StateId from, int min_digits, int max_digits, StateId to) {
  for (int n = 0;; ++n) {
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

// Digits between two numbers of as many digits: while they are equal to the beginning of a bound,
// the next digit is bounded too.
void JsonRules::add_same_length(StateId from, const std::string& low, const std::string& high,
                                StateId to) {
  struct Ways {
    std::optional<StateId> both, at_low, at_high, between;
  };
  Ways ways;
  ways.both = from;
  for (size_t i = 0; i < low.size(); ++i) {
    const bool last = i + 1 == low.size();
    Ways next;
    const auto go = [&](StateId state, char first, char final, std::optional<StateId>& target) {
      if (first > final) return;
      if (!target) target = last ? to : builder_.add_state();
      builder_.add_edge(state, static_cast<uint8_t>(first), static_cast<uint8_t>(final), *target);
    };
    const auto above = static_cast<char>(low[i] + 1), below = static_cast<char>(high[i] - 1);
    if (ways.both) {
      if (low[i] == high[i]) {
        go(*ways.both, low[i], low[i], next.both);
      } else {
        go(*ways.both, low[i], low[i], next.at_low);
        go(*ways.both, above, below, next.between);
        go(*ways.both, high[i], high[i], next.at_high);
      }
    }
    if (ways.at_low) {
      go(*ways.at_low, low[i], low[i], next.at_low);
      go(*ways.at_low, above, '9', next.between);
    }
    if (ways.at_high) {
      go(*ways.at_high, '0', below, next.between);
      go(*ways.at_high, high[i], high[i], next.at_high);
    }
    if (ways.between) go(*ways.between, '0', '9', next.between);
    ways = next;
  }
}

// The numbers from `low` >= 0 to `high`.
void JsonRules::add_natural(StateId from, int64_t low, int64_t high, StateId to) {
  for (int64_t first = 0, limit = 10; low <= high && first <= high; first = limit, limit *= 10) {
    const int64_t begin = std::max(low, first), end = std::min(high, limit - 1);
    if (begin <= end) add_same_length(from, std::to_string(begin), std::to_string(end), to);
    if (limit > kMaxBoundedInteger) return;
  }
}

RuleId JsonRules::integer(const IntegerRange& range) {
  const int64_t min = std::max(range.min.value_or(-kMaxBoundedInteger), -kMaxBoundedInteger);
  const int64_t max = std::min(range.max.value_or(kMaxBoundedInteger), kMaxBoundedInteger);
  const RuleId rule = builder_.add_rule();
  const StateId start = builder_.rule_start(rule);
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  add_natural(start, std::max<int64_t>(min, 0), max, end);
  if (min < 0) add_natural(builder_.add_literal(start, "-"), std::max<int64_t>(-max, 1), -min, end);
  return rule;
}

RuleId JsonRules::number(const IntegerRange& range) {
  const int64_t min = std::max(range.min.value_or(-kMaxBoundedInteger), -kMaxBoundedInteger);
  const int64_t max = std::min(range.max.value_or(kMaxBoundedInteger), kMaxBoundedInteger);
  const RuleId rule = builder_.add_rule();
  const StateId start = builder_.rule_start(rule);
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  builder_.add_call(start, integer(range), end);
  // n.f lies between n and n + 1, and -n.f between -n - 1 and -n.
  const StateId dot = builder_.add_state();
  add_natural(start, std::max<int64_t>(min, 0), max - 1, dot);
  if (min < 0)
    add_natural(builder_.add_literal(start, "-"), std::max<int64_t>(-max, 0), -min - 1, dot);
  add_digits(builder_.add_literal(dot, "."), 1, kMaxFractionDigits, end);
  return rule;
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

RuleId JsonRules::array() {
  if (array_) return *array_;
  array_ = builder_.add_rule();
  const StateId open = builder_.add_literal(builder_.rule_start(*array_), "[");
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  const StateId item = builder_.add_state(), behind = builder_.add_state();
  builder_.add_edge(open, ']', ']', end);
  builder_.add_jump(open, item);
  builder_.add_call(item, value(), behind);
  builder_.add_literal(behind, ", ", item);
  builder_.add_edge(behind, ']', ']', end);
  return *array_;
}

RuleId JsonRules::object() {
  if (object_) return *object_;
  object_ = builder_.add_rule();
  const StateId open = builder_.add_literal(builder_.rule_start(*object_), "{");
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  const StateId member = builder_.add_state(), behind = builder_.add_state();
  builder_.add_edge(open, '}', '}', end);
  builder_.add_jump(open, member);
  const StateId key = builder_.add_called(member, string());
  builder_.add_call(builder_.add_literal(key, ": "), value(), behind);
  builder_.add_literal(behind, ", ", member);
  builder_.add_edge(behind, '}', '}', end);
  return *object_;
}

void JsonRules::add_scalars(StateId from, bool with_string, StateId to) {
  if (with_string) builder_.add_call(from, string(), to);
  builder_.add_call(from, number(), to);
  builder_.add_literals(from, {"true", "false", "null"}, to);
}

RuleId JsonRules::value() {
  if (value_) return *value_;
  value_ = builder_.add_rule();
  const StateId start = builder_.rule_start(*value_);
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  add_scalars(start, true, end);
  builder_.add_call(start, array(), end);
  builder_.add_call(start, object(), end);
  return *value_;
}

RuleId JsonRules::value_no_string() {
  if (value_no_string_) return *value_no_string_;
  value_no_string_ = builder_.add_rule();
  const StateId start = builder_.rule_start(*value_no_string_);
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  add_scalars(start, false, end);
  builder_.add_call(start, array(), end);
  builder_.add_call(start, object(), end);
  return *value_no_string_;
}

}  // namespace onecard::text::grammar
