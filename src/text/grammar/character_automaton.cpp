#include "text/grammar/character_automaton.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"

namespace onecard::text::grammar {

void WorkBudget::spend(size_t units) {
  if (units > left_)
    throw Error(ErrorCode::kResourceExhausted, "patterns and lengths of strings take too much");
  left_ -= units;
}

CharacterAutomaton intersection(const CharacterAutomaton& a, const CharacterAutomaton& b,
                                WorkBudget& budget) {
  CharacterAutomaton both;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> ids;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const auto id_of = [&](uint32_t in_a, uint32_t in_b) {
    const auto [found, added] =
        ids.try_emplace({in_a, in_b}, static_cast<uint32_t>(both.states.size()));
    if (added) {
      both.states.push_back({{}, a.states[in_a].accepts && b.states[in_b].accepts});
      pairs.emplace_back(in_a, in_b);
    }
    return found->second;
  };
  id_of(0, 0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const std::vector<CharacterAutomaton::Step>& from_a = a.states[pairs[i].first].steps;
    const std::vector<CharacterAutomaton::Step>& from_b = b.states[pairs[i].second].steps;
    budget.spend(1 + from_a.size() + from_b.size());
    std::vector<CharacterAutomaton::Step> steps;
    for (auto x = from_a.begin(), y = from_b.begin(); x != from_a.end() && y != from_b.end();) {
      const char32_t first = std::max(x->first, y->first), last = std::min(x->last, y->last);
      if (first <= last) steps.push_back({first, last, id_of(x->target, y->target)});
      if (x->last < y->last)
        ++x;
      else
        ++y;
    }
    both.states[i].steps = std::move(steps);
  }
  return both;
}

CharacterAutomaton at_least(size_t num_characters, WorkBudget& budget) {
  budget.spend(num_characters + 1);
  CharacterAutomaton automaton;
  automaton.states.resize(num_characters + 1);
  for (uint32_t i = 0; i <= num_characters; ++i)
    automaton.states[i].steps = {
        {0, kMaxCharacter, std::min(i + 1, static_cast<uint32_t>(num_characters))}};
  automaton.states.back().accepts = true;
  return automaton;
}

}  // namespace onecard::text::grammar
