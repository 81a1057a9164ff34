// Regular expressions, as the `pattern` of a JSON schema, to automata over characters.
#pragma once

#include <string_view>

#include "text/grammar/character_automaton.h"

namespace onecard::text::grammar {

/// The strings in which `pattern` matches somewhere: nothing is anchored but by '^' and '$'. The
/// syntax is that of ECMA-262 over code points. Look-around, back-references, \b, \B and \p are
/// beyond automata or tables that are kept here: kUnsupported, by name. What is no expression at
/// all is kInvalidArgument.
CharacterAutomaton compile_pattern(std::string_view pattern, WorkBudget& budget);

}  // namespace onecard::text::grammar
