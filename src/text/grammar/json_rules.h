// The rules that every JSON grammar shares. Style: no white space but ", " between elements and ":
// " behind keys, which is how the model's tool arguments are written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "text/grammar/automaton.h"

namespace onecard::text::grammar {

// Digits of a number, so that it ends and stays within a double: 10^30 * 10^99 at most.
constexpr int kMaxIntegerDigits = 30;
constexpr int kMaxFractionDigits = 30;
constexpr int kMaxExponentDigits = 2;
// With a bound on one side, the other side ends here; 18 digits fit 64 bits.
constexpr int64_t kMaxBoundedInteger = 999'999'999'999'999'999;

struct IntegerRange {
  std::optional<int64_t> min, max;
};

/// Makes rules when they are first asked for.
class JsonRules {
 public:
  explicit JsonRules(AutomatonBuilder& builder) : builder_(builder) {}

  RuleId string();
  RuleId number();
  RuleId integer();
  RuleId boolean();
  RuleId null();
  RuleId array();            // of anything
  RuleId object();           // of anything
  RuleId value();            // anything
  RuleId value_no_string();  // anything but a string

  /// Integers of a range.
  RuleId integer(const IntegerRange& range);
  /// Numbers of a range whose bounds are whole numbers, without exponents.
  RuleId number(const IntegerRange& range);
  /// Strings of so many characters.
  RuleId string(int64_t min_length, std::optional<int64_t> max_length);

  /// One character of a JSON string, as it is written between quotes.
  RuleId character();

 private:
  void add_digits(StateId from, int min_digits, int max_digits, StateId to);
  void add_same_length(StateId from, const std::string& low, const std::string& high, StateId to);
  void add_natural(StateId from, int64_t low, int64_t high, StateId to);
  RuleId literal_rule(const char* text);
  void add_scalars(StateId from, bool with_string, StateId to);

  AutomatonBuilder& builder_;
  std::optional<RuleId> string_, number_, integer_, boolean_, null_, array_, object_, value_,
      value_no_string_, character_;
};

/// Characters between the quotes of a JSON string.
AutomatonBuilder::Machine json_string_machine();

/// What a JSON string may not hold as it is, since the output parser would take it for a tag; the
/// same text can be written with an escape.
std::vector<AutomatonBuilder::WordTarget> words_kept_out_of_strings();

}  // namespace onecard::text::grammar
