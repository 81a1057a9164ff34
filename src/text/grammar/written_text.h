// How characters are written: inside a JSON string, or verbatim between tags of the tool markup.
#pragma once

#include <string_view>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/character_automaton.h"

namespace onecard::text::grammar {

enum class Writing {
  kJson,      // between quotes, which are not part of it
  kVerbatim,  // as it is
};

/// Any text, in every way in which JSON can write it.
AutomatonBuilder::Machine any_text(Writing writing);

/// The strings of `characters`. In JSON what need not be escaped is not, but for '<' and '/', whose
/// escapes can break up what may not stand in a string as it is (words_kept_out()).
AutomatonBuilder::Machine written_text(const CharacterAutomaton& characters, Writing writing);

/// What a text may not hold as it is, since the output parser would take it for a tag.
std::vector<AutomatonBuilder::WordTarget> words_kept_out(Writing writing);

}  // namespace onecard::text::grammar
