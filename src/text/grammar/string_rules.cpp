#include "text/grammar/string_rules.h"

#include <algorithm>

#include "base/error.h"
#include "text/chat_tokens.h"
#include "text/grammar/pattern.h"
#include "text/grammar/string_format.h"

namespace onecard::text::grammar {

RuleId StringRules::rule(const StringLimits& limits, Writing writing, const std::string& where) {
  const auto known = rules_.find({limits, writing});
  if (known != rules_.end()) return known->second;
  const auto remember = [&](RuleId rule) { return rules_[{limits, writing}] = rule; };

  std::optional<CharacterAutomaton> characters;
  try {
    characters = characters_of(limits);
  } catch (const Error& error) {
    throw Error(error.code(), where + ": " + error.what());
  }
  // A length at most is counted while text is written. At least so many characters are part of the
  // automaton, if there is one, since not every state of it can go on for as long as one likes.
  LengthRange length;
  if (!characters) length.min = limits.min_length;
  if (limits.max_length) length.max = *limits.max_length;
  if (limits.format)
    length.max =
        std::min(length.max, find_string_format(*limits.format)->max_length.value_or(length.max));
  const bool counted = length.min > 0 || length.max != LengthRange().max;
  if (!counted)
    return remember(add_text(characters ? written_text(*characters, writing) : any_text(writing),
                             writing, AutomatonBuilder::Counted::kNo)
                        .rule);

  Text text;
  if (characters) {
    text = add_text(written_text(*characters, writing), writing, AutomatonBuilder::Counted::kYes);
  } else {
    const auto [any, added] = any_counted_.try_emplace(writing);
    if (added) any->second = add_text(any_text(writing), writing, AutomatonBuilder::Counted::kYes);
    text = any->second;
  }
  const RuleId rule = builder_.add_rule();
  if (text.min_length <= length.max && length.min <= length.max) {
    const StateId end = builder_.add_state();
    builder_.set_accepting(end);
    builder_.add_counted_call(builder_.rule_start(rule), text.rule, length, end);
  }
  return remember(rule);
}

StringRules::Text StringRules::add_text(const AutomatonBuilder::Machine& machine, Writing writing,
                                        AutomatonBuilder::Counted counted) {
  const RuleId rule = builder_.add_rule();
  const StateId end = builder_.add_state();
  builder_.set_accepting(end);
  const StateId start = builder_.rule_start(rule);
  if (writing == Writing::kJson) {
    const AutomatonBuilder::Text text = builder_.add_text(
        builder_.add_literal(start, "\""), machine, words_kept_out(writing), counted);
    for (const StateId state : text.ends) builder_.add_edge(state, '"', '"', end);
    return {rule, text.min_length};
  }
  const StateId closer = builder_.add_state();
  builder_.add_literal(closer, std::string(kDsmlClose) + " parameter>", end);
  const AutomatonBuilder::Text text =
      builder_.add_text(start, machine, words_kept_out(writing), counted);
  for (const StateId state : text.ends) builder_.add_jump(state, closer);
  return {rule, text.min_length};
}

std::optional<CharacterAutomaton> StringRules::characters_of(const StringLimits& limits) {
  std::optional<CharacterAutomaton> characters;
  const auto restrict_to = [&](const CharacterAutomaton& more) {
    characters = characters ? intersection(*characters, more, budget_) : more;
  };
  if (limits.pattern) restrict_to(compile_pattern(*limits.pattern, budget_));
  if (limits.format)
    restrict_to(compile_pattern(find_string_format(*limits.format)->pattern, budget_));
  if (characters && limits.min_length > 0) restrict_to(at_least(limits.min_length, budget_));
  return characters;
}

}  // namespace onecard::text::grammar
