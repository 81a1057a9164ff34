// Numbers within bounds, and multiples, digit by digit: the bounds are decimals of any form, and
// nothing is rounded.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/grammar/automaton.h"

namespace onecard::text::grammar {

// Digits of a number, so that it ends and stays within a double: 10^30 * 10^99 at most.
constexpr size_t kMaxIntegerDigits = 30;
constexpr size_t kMaxFractionDigits = 30;
constexpr size_t kMaxExponentDigits = 2;

/// A decimal without its zeros at either end: "0" has no digits at all.
struct Decimal {
  bool negative = false;
  std::string integer;
  std::string fraction;

  bool is_zero() const { return integer.empty() && fraction.empty(); }
  /// Nothing when there are more digits than a number may have.
  static std::optional<Decimal> parse(std::string_view json_number);
};

/// a < b
bool less(const Decimal& a, const Decimal& b);

struct NumberLimits {
  struct Bound {
    Decimal value;
    bool inclusive = true;
  };
  std::optional<Bound> low, high;
  std::optional<Decimal> multiple_of;  // more than 0
  bool integer = false;

  bool any() const { return low || high || multiple_of; }
};

/// Numbers without an exponent. Throws kUnsupported when `multiple_of` has too many digits.
RuleId add_number_rule(AutomatonBuilder& builder, const NumberLimits& limits);

}  // namespace onecard::text::grammar
