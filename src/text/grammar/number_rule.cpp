#include "text/grammar/number_rule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <compare>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"

namespace onecard::text::grammar {
namespace {

// Remainders are states.
constexpr uint32_t kMaxDivisor = 10'000;

std::strong_ordering compare_magnitudes(const Decimal& a, const Decimal& b) {
  if (a.integer.size() != b.integer.size()) return a.integer.size() <=> b.integer.size();
  if (a.integer != b.integer) return a.integer <=> b.integer;
  return a.fraction <=> b.fraction;
}

// The remainders of a division by `divisor`, as far as the digits that follow can tell them apart
// (Moore 1956). Class 0 is that of multiples, and of no digits at all.
class Remainders {
 public:
  explicit Remainders(uint32_t divisor) {
    // Classes are numbered as they come up, so equal partitions have equal numbers.
    std::vector<uint32_t> classes(divisor, 1);
    classes[0] = 0;
    for (size_t num_before = 0; num_before != next_.size() || next_.empty();) {
      num_before = next_.size();
      next_.clear();
      std::map<std::pair<uint32_t, Digits>, uint32_t> found;
      std::vector<uint32_t> refined(divisor);
      for (uint32_t r = 0; r < divisor; ++r) {
        Digits behind{};
        for (uint32_t digit = 0; digit < 10; ++digit)
          behind[digit] = classes[(r * 10 + digit) % divisor];
        const auto [own, added] =
            found.try_emplace({classes[r], behind}, static_cast<uint32_t>(found.size()));
        if (added) next_.push_back(behind);
        refined[r] = own->second;
      }
      classes = std::move(refined);
    }
  }

  uint32_t next(uint32_t from, char digit) const {
    return next_[from][static_cast<size_t>(digit - '0')];
  }
  /// Is the number a multiple once so many zeros are appended?
  bool is_multiple(uint32_t from, size_t num_zeros) const {
    for (size_t i = 0; i < num_zeros; ++i) from = next(from, '0');
    return from == 0;
  }

 private:
  using Digits = std::array<uint32_t, 10>;
  std::vector<Digits> next_;  // of a class and a digit
};

Remainders remainders_of(const Decimal& divisor) {
  const std::string digits = divisor.integer + divisor.fraction;
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || value > kMaxDivisor)
    throw Error(ErrorCode::kUnsupported,
                "multipleOf: more than " + std::to_string(kMaxDivisor) + " without its point");
  return Remainders(value);
}

// The numbers without sign from `low` to `high`.
class Magnitudes {
 public:
  struct Limits {
    NumberLimits::Bound low;
    std::optional<NumberLimits::Bound> high;
    const Remainders* remainders = nullptr;  // of whole units of the divisor's last digit
    size_t divisor_digits = 0;               // of its fraction
    bool integer = false;
    bool zero = true;  // "0" itself may be written
  };
  Magnitudes(AutomatonBuilder& builder, const Limits& limits, StateId end)
      : builder_(builder),
        limits_(limits),
        low_(limits.low.value),
        high_(limits.high ? limits.high->value : Decimal()),
        end_(end) {}

  void add(StateId from) {
    // A first digit of 0 is the only one.
    const Place none;
    if (limits_.zero || !limits_.integer)
      add_ways_from_integer(builder_.add_literal(from, "0"), none);
    add_digits(from, none, '1');
    while (!open_.empty()) {
      const auto [place, state] = open_.back();
      open_.pop_back();
      if (place.fraction)
        add_ways_from_fraction(state, place);
      else
        add_ways_from_integer(state, place);
      const size_t max_digits = place.fraction ? max_fraction_digits() : kMaxIntegerDigits;
      if (place.num_digits < max_digits) add_digits(state, place, '0');
    }
  }

 private:
  // How the digits so far compare with those of a bound.
  enum class Side : char { kBelow, kEqual, kAbove };
  struct Place {
    bool fraction = false;
    size_t num_digits = 0;  // of the integer, or of the fraction
    Side low = Side::kEqual, high = Side::kEqual;
    uint32_t remainder = 0;
    friend auto operator<=>(const Place&, const Place&) = default;
  };

  size_t max_fraction_digits() const {
    if (limits_.integer) return 0;
    // A whole multiple may be written with one zero, as floats are.
    return limits_.remainders ? std::max<size_t>(limits_.divisor_digits, 1) : kMaxFractionDigits;
  }

  static Side after(Side side, char digit, const std::string& bound, size_t at) {
    if (side != Side::kEqual) return side;
    const char own = at < bound.size() ? bound[at] : '0';
    return digit < own ? Side::kBelow : digit > own ? Side::kAbove : Side::kEqual;
  }

  // Of the whole integer: more digits are more.
  static Side of_integer(const Place& place, Side side, const std::string& bound) {
    if (place.num_digits != bound.size())
      return place.num_digits < bound.size() ? Side::kBelow : Side::kAbove;
    return side;
  }

  void add_digits(StateId from, const Place& place, char first) {
    std::optional<Edge> run;
    const auto flush = [&] {
      if (run) builder_.add_edge(from, run->first, run->last, run->target);
      run.reset();
    };
    for (char digit = first; digit <= '9'; ++digit) {
      const std::optional<StateId> target = behind(place, digit);
      const auto byte = static_cast<uint8_t>(digit);
      if (target && run && run->target == *target) {
        run->last = byte;
        continue;
      }
      flush();
      if (target) run = {byte, byte, *target};
    }
    flush();
  }

  // The state behind one more digit; nothing when no number in the limits goes on so.
  std::optional<StateId> behind(const Place& place, char digit) {
    Place next = place;
    ++next.num_digits;
    next.low =
        after(place.low, digit, place.fraction ? low_.fraction : low_.integer, place.num_digits);
    next.high =
        after(place.high, digit, place.fraction ? high_.fraction : high_.integer, place.num_digits);
    if (place.fraction) {
      if (next.low == Side::kBelow || (limits_.high && next.high == Side::kAbove)) return {};
      if (limits_.remainders && place.num_digits >= limits_.divisor_digits && digit != '0')
        return {};
    } else {
      if (limits_.high && of_integer(next, next.high, high_.integer) == Side::kAbove) return {};
      // Longer than the bound: nothing more to compare.
      if (next.num_digits > low_.integer.size()) next.low = Side::kAbove;
    }
    if (!limits_.high) next.high = Side::kBelow;
    if (limits_.remainders && (!place.fraction || place.num_digits < limits_.divisor_digits))
      next.remainder = limits_.remainders->next(place.remainder, digit);
    return state_of(next);
  }

  StateId state_of(const Place& place) {
    const auto [found, added] = states_.try_emplace(place, kFinalState);
    if (added) {
      found->second = builder_.add_state();
      open_.emplace_back(place, found->second);
    }
    return found->second;
  }

  void add_ways_from_integer(StateId state, const Place& place) {
    Place fraction;
    fraction.fraction = true;
    fraction.low = of_integer(place, place.low, low_.integer);
    fraction.high = limits_.high ? of_integer(place, place.high, high_.integer) : Side::kBelow;
    fraction.remainder = place.remainder;
    if (fraction.low == Side::kBelow || fraction.high == Side::kAbove) return;
    const bool is_zero = place.num_digits == 0;
    if (may_end(fraction) && (limits_.zero || !is_zero)) builder_.add_jump(state, end_);
    if (max_fraction_digits() > 0) builder_.add_edge(state, '.', '.', state_of(fraction));
  }

  void add_ways_from_fraction(StateId state, const Place& place) {
    if (place.num_digits > 0 && may_end(place)) builder_.add_jump(state, end_);
  }

  // `place` is one of a fraction, perhaps of one without digits.
  bool may_end(const Place& place) const {
    if (place.low == Side::kEqual &&
        (place.num_digits < low_.fraction.size() || !limits_.low.inclusive))
      return false;
    if (place.high == Side::kEqual && place.num_digits >= high_.fraction.size() &&
        !limits_.high->inclusive)
      return false;
    if (!limits_.remainders) return true;
    const size_t missing =
        limits_.divisor_digits - std::min(place.num_digits, limits_.divisor_digits);
    return limits_.remainders->is_multiple(place.remainder, missing);
  }

  AutomatonBuilder& builder_;
  const Limits limits_;
  const Decimal low_, high_;
  const StateId end_;
  std::map<Place, StateId> states_;
  std::vector<std::pair<Place, StateId>> open_;
};

Decimal magnitude(Decimal value) {
  value.negative = false;
  return value;
}

}  // namespace

std::optional<Decimal> Decimal::parse(std::string_view text) {
  Decimal decimal;
  if (text.starts_with('-')) {
    decimal.negative = true;
    text.remove_prefix(1);
  }
  const size_t exponent_at = std::min(text.find_first_of("eE"), text.size());
  int exponent = 0;
  if (exponent_at < text.size()) {
    std::string_view digits = text.substr(exponent_at + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    if (std::from_chars(digits.data(), digits.data() + digits.size(), exponent).ec != std::errc() ||
        exponent < -1000 || exponent > 1000)
      return std::nullopt;
    text = text.substr(0, exponent_at);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string digits(text.substr(0, point));
  if (point < text.size()) digits += text.substr(point + 1);
  // Where the point stands in `digits`, once it is long enough.
  long place = static_cast<long>(point) + exponent;
  if (place < 0) {
    digits.insert(0, static_cast<size_t>(-place), '0');
    place = 0;
  }
  if (static_cast<size_t>(place) > digits.size()) digits.resize(static_cast<size_t>(place), '0');
  decimal.integer = digits.substr(0, static_cast<size_t>(place));
  decimal.fraction = digits.substr(static_cast<size_t>(place));
  decimal.integer.erase(0,
                        std::min(decimal.integer.find_first_not_of('0'), decimal.integer.size()));
  decimal.fraction.erase(decimal.fraction.find_last_not_of('0') + 1);
  if (decimal.integer.size() > kMaxIntegerDigits || decimal.fraction.size() > kMaxFractionDigits)
    return std::nullopt;
  if (decimal.is_zero()) decimal.negative = false;
  return decimal;
}

bool less(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative;
  return a.negative ? compare_magnitudes(b, a) < 0 : compare_magnitudes(a, b) < 0;
}

RuleId add_number_rule(AutomatonBuilder& builder, const NumberLimits& limits) {
  const RuleId rule = builder.add_rule();
  const StateId start = builder.rule_start(rule);
  const StateId end = builder.add_state();
  builder.set_accepting(end);
  std::optional<Remainders> remainders;
  Magnitudes::Limits common;
  common.integer = limits.integer;
  if (limits.multiple_of) {
    remainders.emplace(remainders_of(*limits.multiple_of));
    common.remainders = &*remainders;
    common.divisor_digits = limits.multiple_of->fraction.size();
  }
  const NumberLimits::Bound zero;
  if (!limits.high || !limits.high->value.negative) {
    Magnitudes::Limits positive = common;
    positive.low = limits.low && !limits.low->value.negative ? *limits.low : zero;
    positive.high = limits.high;
    Magnitudes(builder, positive, end).add(start);
  }
  // Behind a minus the bounds change places.
  const bool below_zero = !limits.low || limits.low->value.negative;
  if (below_zero) {
    Magnitudes::Limits negative = common;
    negative.low = zero;
    if (limits.high && limits.high->value.negative)
      negative.low = {magnitude(limits.high->value), limits.high->inclusive};
    else if (limits.high && limits.high->value.is_zero())
      negative.low.inclusive = limits.high->inclusive;
    if (limits.low)
      negative.high = NumberLimits::Bound{magnitude(limits.low->value), limits.low->inclusive};
    negative.zero = !limits.integer;
    Magnitudes(builder, negative, end).add(builder.add_literal(start, "-"));
  }
  return rule;
}

}  // namespace onecard::text::grammar
