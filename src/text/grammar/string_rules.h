// Strings to rules, by what a schema says about them and how they are written.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "text/grammar/automaton.h"
#include "text/grammar/character_automaton.h"
#include "text/grammar/written_text.h"

namespace onecard::text::grammar {

struct StringLimits {
  uint32_t min_length = 0;  // characters
  std::optional<uint32_t> max_length;
  std::optional<std::string> pattern;
  std::optional<std::string> format;  // one that find_string_format() knows

  friend auto operator<=>(const StringLimits&, const StringLimits&) = default;
};

/// Makes a rule when it is first asked for.
class StringRules {
 public:
  /// `max_work` bounds what all patterns together may cost.
  StringRules(AutomatonBuilder& builder, size_t max_work) : builder_(builder), budget_(max_work) {}

  /// In JSON a string with its quotes; verbatim it ends with the closing tag of a parameter. No
  /// string has to be in the limits. What is wrong with the pattern is an error that begins with
  /// `where`.
  RuleId rule(const StringLimits& limits, Writing writing, const std::string& where);

 private:
  struct Text {
    RuleId rule = 0;
    uint32_t min_length = 0;
  };
  Text add_text(const AutomatonBuilder::Machine& machine, Writing writing,
                AutomatonBuilder::Counted counted);
  std::optional<CharacterAutomaton> characters_of(const StringLimits& limits);

  AutomatonBuilder& builder_;
  WorkBudget budget_;
  std::map<std::pair<StringLimits, Writing>, RuleId> rules_;
  std::map<Writing, Text> any_counted_;
};

}  // namespace onecard::text::grammar
