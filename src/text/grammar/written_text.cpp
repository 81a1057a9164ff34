#include "text/grammar/written_text.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "text/chat_tokens.h"
#include "text/utf8.h"

namespace onecard::text::grammar {
namespace {

using Machine = AutomatonBuilder::Machine;

struct ByteRange {
  uint8_t first = 0, last = 0;
  friend auto operator<=>(const ByteRange&, const ByteRange&) = default;
};
using ByteRanges = std::vector<ByteRange>;  // of the bytes of one character

struct ShortEscape {
  char letter;
  char32_t character;
};
constexpr std::array<ShortEscape, 8> kShortEscapes = {{{'"', '"'},
                                                       {'\\', '\\'},
                                                       {'/', '/'},
                                                       {'b', '\b'},
                                                       {'f', '\f'},
                                                       {'n', '\n'},
                                                       {'r', '\r'},
                                                       {'t', '\t'}}};

bool has_short_escape(char32_t character) {
  return std::any_of(kShortEscapes.begin(), kShortEscapes.end(),
                     [&](const ShortEscape& escape) { return escape.character == character; });
}

// Splits a range of characters into ranges whose bytes vary independently of each other.
void split_utf8(char32_t first, char32_t last, std::vector<ByteRanges>& out) {
  if (first > last) return;
  for (const char32_t limit : {0x7fu, 0x7ffu, 0xd7ffu, 0xdfffu, 0xffffu})
    if (first <= limit && limit < last) {
      split_utf8(first, limit, out);
      return split_utf8(limit + 1, last, out);
    }
  if (first >= 0xd800 && last <= 0xdfff) return;  // surrogates are no characters
  const int num_bytes = last <= 0x7f ? 1 : last <= 0x7ff ? 2 : last <= 0xffff ? 3 : 4;
  for (int i = 1; i < num_bytes; ++i) {
    const char32_t low = (char32_t{1} << (6 * i)) - 1;  // the bits of the last i bytes
    if ((first & ~low) == (last & ~low)) continue;
    if ((first & low) != 0) {
      split_utf8(first, first | low, out);
      return split_utf8((first | low) + 1, last, out);
    }
    if ((last & low) != low) {
      split_utf8(first, (last & ~low) - 1, out);
      return split_utf8(last & ~low, last, out);
    }
  }
  std::string low_bytes, high_bytes;
  append_code_point(low_bytes, first);
  append_code_point(high_bytes, last);
  ByteRanges ranges;
  for (size_t i = 0; i < low_bytes.size(); ++i)
    ranges.push_back({static_cast<uint8_t>(low_bytes[i]), static_cast<uint8_t>(high_bytes[i])});
  out.push_back(ranges);
}

class Writer {
 public:
  Writer(const CharacterAutomaton& characters, Writing writing) : writing_(writing) {
    for (const CharacterAutomaton::State& state : characters.states)
      machine_.states.push_back({{}, true, state.accepts});
    for (size_t i = 0; i < characters.states.size(); ++i)
      add_steps(static_cast<int>(i), characters.states[i].steps);
  }

  Machine take() { return std::move(machine_); }

 private:
  void add_steps(int from, const std::vector<CharacterAutomaton::Step>& steps) {
    std::vector<std::pair<char32_t, int>> escaped;
    for (const CharacterAutomaton::Step& step : steps) {
      const int to = static_cast<int>(step.target);
      if (writing_ == Writing::kVerbatim) {
        add_plain(from, step.first, step.last, to);
        continue;
      }
      char32_t begin = step.first;
      for (char32_t c = step.first; c <= std::min<char32_t>(step.last, '\\'); ++c) {
        const bool plain = c >= 0x20 && c != '"' && c != '\\';
        if (!plain) {
          if (c > begin) add_plain(from, begin, c - 1, to);
          begin = c + 1;
        }
        if (!plain || c == '/' || c == '<') escaped.emplace_back(c, to);
      }
      add_plain(from, begin, step.last, to);
    }
    if (!escaped.empty()) add_escapes(from, escaped);
  }

  void add_plain(int from, char32_t first, char32_t last, int to) {
    std::vector<ByteRanges> all;
    split_utf8(first, last, all);
    for (const ByteRanges& ranges : all)
      machine_.add_step(from, ranges[0].first, ranges[0].last, behind(ranges, 1, to));
  }

  // The state behind the first `num_bytes` bytes of a character that leads to `to`.
  int behind(const ByteRanges& ranges, size_t num_bytes, int to) {
    if (num_bytes == ranges.size()) return to;
    const ByteRanges rest(ranges.begin() + static_cast<ptrdiff_t>(num_bytes), ranges.end());
    const auto [found, added] = behind_.try_emplace({rest, to}, 0);
    if (!added) return found->second;
    const int state = machine_.add_state();
    found->second = state;
    machine_.add_step(state, rest[0].first, rest[0].last, behind(rest, 1, to));
    return state;
  }

  void add_escapes(int from, const std::vector<std::pair<char32_t, int>>& escaped) {
    const auto [found, added] = escapes_.try_emplace(escaped, 0);
    if (added) {
      const int escape = found->second = machine_.add_state();
      int u00 = -1;
      std::map<char32_t, int> high_digits;
      for (const auto& [c, to] : escaped) {
        for (const ShortEscape& known : kShortEscapes)
          if (known.character == c) add_byte(escape, known.letter, to);
        if (has_short_escape(c)) continue;
        if (u00 < 0) {
          const int u = machine_.add_state(), u0 = machine_.add_state();
          u00 = machine_.add_state();
          add_byte(escape, 'u', u);
          add_byte(u, '0', u0);
          add_byte(u0, '0', u00);
        }
        const auto [digit, first] = high_digits.try_emplace(c / 16, 0);
        if (first) {
          digit->second = machine_.add_state();
          add_byte(u00, static_cast<char>('0' + c / 16), digit->second);
        }
        add_byte(digit->second, "0123456789abcdef"[c % 16], to);
      }
    }
    add_byte(from, '\\', found->second);
  }

  void add_byte(int from, char c, int to) {
    machine_.add_step(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
  }

  const Writing writing_;
  Machine machine_;
  std::map<std::pair<ByteRanges, int>, int> behind_;
  std::map<std::vector<std::pair<char32_t, int>>, int> escapes_;
};

Machine any_json_text() {
  Machine machine = Machine::utf8("\"\\", 0x20);
  const auto add = [&](int from, std::string_view bytes, int to) {
    for (const char c : bytes)
      machine.add_step(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
  };
  constexpr std::string_view kHex = "0123456789abcdefABCDEF";
  const int escape = machine.add_state(), u = machine.add_state();
  const int hex2 = machine.add_state(), hex3 = machine.add_state(), hex4 = machine.add_state();
  // \ud800 to \udbff needs \udc00 to \udfff behind it.
  const int after_d = machine.add_state(), high3 = machine.add_state();
  const int high4 = machine.add_state(), pair = machine.add_state();
  const int pair_u = machine.add_state(), pair_d = machine.add_state();
  const int pair_low = machine.add_state();
  add(0, "\\", escape);
  for (const ShortEscape& known : kShortEscapes) add(escape, {&known.letter, 1}, 0);
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

}  // namespace

Machine any_text(Writing writing) {
  return writing == Writing::kJson ? any_json_text() : Machine::utf8("", 0x00);
}

Machine written_text(const CharacterAutomaton& characters, Writing writing) {
  return Writer(characters, writing).take();
}

std::vector<AutomatonBuilder::WordTarget> words_kept_out(Writing writing) {
  std::vector<AutomatonBuilder::WordTarget> words = {
      {std::string(kEos)}, {std::string(kDsmlOpen)}, {std::string(kDsmlClose)}};
  if (writing == Writing::kJson) words.push_back({std::string(kThinkClose)});
  return words;
}

}  // namespace onecard::text::grammar
