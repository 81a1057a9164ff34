// Deterministic automata over characters: what a schema says about a string, before it is known how
// the string is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace onecard::text::grammar {

constexpr char32_t kMaxCharacter = 0x10ffff;

struct CharacterAutomaton {
  struct Step {
    char32_t first = 0, last = 0;  // inclusive
    uint32_t target = 0;
  };
  struct State {
    std::vector<Step> steps;  // ascending and disjoint
    bool accepts = false;
  };
  std::vector<State> states;  // begins in the first one
};

/// What may still be spent on making automata: untrusted patterns can ask for exponentially many
/// states.
class WorkBudget {
 public:
  explicit WorkBudget(size_t units) : left_(units) {}
  /// Throws kResourceExhausted when there is not as much left.
  void spend(size_t units);

 private:
  size_t left_;
};

/// The strings that both accept.
CharacterAutomaton intersection(const CharacterAutomaton& a, const CharacterAutomaton& b,
                                WorkBudget& budget);

/// Strings of at least so many characters.
CharacterAutomaton at_least(size_t num_characters, WorkBudget& budget);

}  // namespace onecard::text::grammar
