#include "text/grammar/pattern.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/utf8.h"

namespace onecard::text::grammar {
namespace {

constexpr int kMaxNesting = 64;
constexpr uint32_t kMaxRepetitions = 10'000;

[[noreturn]] void invalid(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "pattern: " + what);
}

[[noreturn]] void unsupported(const std::string& what) {
  throw Error(ErrorCode::kUnsupported, "pattern: " + what + " is not supported");
}

// ---- Sets of characters ----

struct Range {
  char32_t first = 0, last = 0;
};
using CharacterSet = std::vector<Range>;  // ascending and disjoint once it is tidy

CharacterSet tidy(CharacterSet set) {
  std::sort(set.begin(), set.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  CharacterSet out;
  for (const Range& range : set) {
    if (!out.empty() && range.first <= out.back().last + 1)
      out.back().last = std::max(out.back().last, range.last);
    else
      out.push_back(range);
  }
  return out;
}

CharacterSet complement(const CharacterSet& tidy_set) {
  CharacterSet out;
  char32_t next = 0;
  for (const Range& range : tidy_set) {
    if (range.first > next) out.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kMaxCharacter) out.push_back({next, kMaxCharacter});
  return out;
}

const CharacterSet& digits() {
  static const CharacterSet set = {{'0', '9'}};
  return set;
}
const CharacterSet& word_characters() {
  static const CharacterSet set = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return set;
}
// WhiteSpace and LineTerminator of ECMA-262.
const CharacterSet& spaces() {
  static const CharacterSet set = {
      {'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
      {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
  return set;
}
const CharacterSet& line_ends() {
  static const CharacterSet set = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  return set;
}

// ---- Syntax ----

struct Node {
  enum class Kind { kSet, kBegin, kEnd, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kSequence;
  CharacterSet set;                             // kSet
  std::vector<std::unique_ptr<Node>> children;  // kSequence, kChoice, kRepeat: one
  uint32_t min = 0;                             // kRepeat
  std::optional<uint32_t> max;                  // kRepeat
};
using NodePtr = std::unique_ptr<Node>;

NodePtr make(Node::Kind kind) {
  NodePtr node = std::make_unique<Node>();
  node->kind = kind;
  return node;
}

class Parser {
 public:
  explicit Parser(std::string_view text) {
    for (size_t begin = 0; begin < text.size();) {
      const CodePoint point = decode_code_point(text.substr(begin));
      characters_.push_back(point.value);
      begin += static_cast<size_t>(point.num_bytes);
    }
  }

  NodePtr parse() {
    NodePtr node = choice(0);
    if (!at_end()) invalid("a ')' without its '('");
    return node;
  }

 private:
  bool at_end() const { return at_ == characters_.size(); }
  bool next_is(char32_t c) const { return !at_end() && characters_[at_] == c; }
  bool take(char32_t c) {
    if (!next_is(c)) return false;
    ++at_;
    return true;
  }
  bool take(std::string_view ascii) {
    for (size_t i = 0; i < ascii.size(); ++i)
      if (at_ + i >= characters_.size() ||
          characters_[at_ + i] != static_cast<unsigned char>(ascii[i]))
        return false;
    at_ += ascii.size();
    return true;
  }
  char32_t take_any(const char* missing) {
    if (at_end()) invalid(missing);
    return characters_[at_++];
  }

  NodePtr choice(int depth) {
    if (depth > kMaxNesting)
      throw Error(ErrorCode::kResourceExhausted, "pattern: groups nested too deeply");
    NodePtr all = make(Node::Kind::kChoice);
    do {
      NodePtr sequence = make(Node::Kind::kSequence);
      while (!at_end() && !next_is('|') && !next_is(')'))
        sequence->children.push_back(repeated(depth));
      all->children.push_back(std::move(sequence));
    } while (take('|'));
    return all;
  }

  NodePtr repeated(int depth) {
    NodePtr node = atom(depth);
    uint32_t min = 0;
    std::optional<uint32_t> max;
    if (take('*')) {
    } else if (take('+')) {
      min = 1;
    } else if (take('?')) {
      max = 1;
    } else if (!take_braces(min, max)) {
      return node;
    }
    take('?');  // a lazy match is found in the same strings
    if (node->kind == Node::Kind::kBegin || node->kind == Node::Kind::kEnd)
      invalid("an anchor cannot be repeated");
    if (next_is('*') || next_is('+') || next_is('?')) invalid("a repetition of a repetition");
    NodePtr repeat = make(Node::Kind::kRepeat);
    repeat->min = min;
    repeat->max = max;
    repeat->children.push_back(std::move(node));
    return repeat;
  }

  // {n}, {n,} or {n,m}; a brace that begins none of them is an ordinary character.
  bool take_braces(uint32_t& min, std::optional<uint32_t>& max) {
    const size_t begin = at_;
    const auto number = [&]() -> std::optional<uint32_t> {
      std::optional<uint32_t> value;
      while (!at_end() && characters_[at_] >= '0' && characters_[at_] <= '9') {
        value = std::min(value.value_or(0) * 10 + uint32_t(characters_[at_] - '0'),
                         kMaxRepetitions + 1);
        ++at_;
      }
      return value;
    };
    const auto none = [&] {
      at_ = begin;
      return false;
    };
    if (!take('{')) return false;
    const std::optional<uint32_t> least = number();
    if (!least) return none();
    std::optional<uint32_t> most = least;
    if (take(',')) most = number();
    if (!take('}')) return none();
    if (*least > kMaxRepetitions || most.value_or(0) > kMaxRepetitions)
      throw Error(ErrorCode::kResourceExhausted,
                  "pattern: more than " + std::to_string(kMaxRepetitions) + " repetitions");
    if (most && *most < *least) invalid("a repetition from more to fewer");
    min = *least;
    max = most;
    return true;
  }

  NodePtr atom(int depth) {
    if (take('^')) return make(Node::Kind::kBegin);
    if (take('$')) return make(Node::Kind::kEnd);
    if (take('(')) return group(depth);
    if (take('[')) return set(character_class());
    if (take('.')) return set(complement(line_ends()));
    if (next_is('*') || next_is('+') || next_is('?')) invalid("a repetition of nothing");
    if (take('\\')) return set(escape(false));
    return set({{characters_[at_], characters_[at_]}}, 1);
  }

  NodePtr set(CharacterSet characters, size_t num_taken = 0) {
    at_ += num_taken;
    NodePtr node = make(Node::Kind::kSet);
    node->set = std::move(characters);
    return node;
  }

  NodePtr group(int depth) {
    if (take("?:")) {
    } else if (take("?=") || take("?!") || take("?<=") || take("?<!")) {
      unsupported("look-around");
    } else if (take("?<")) {
      while (take_any("a name without its '>'") != '>') {
      }
    } else if (next_is('?')) {
      unsupported("a group that begins with \"(?\"");
    }
    NodePtr node = choice(depth + 1);
    if (!take(')')) invalid("a '(' without its ')'");
    return node;
  }

  CharacterSet character_class() {
    const bool negated = take('^');
    CharacterSet all;
    while (!take(']')) {
      const CharacterSet first = class_member();
      // A range needs a character on either side of the '-'.
      const bool range = is_one(first) && next_is('-') && at_ + 1 < characters_.size() &&
                         characters_[at_ + 1] != ']';
      if (range) {
        const size_t minus = at_++;
        const CharacterSet last = class_member();
        if (is_one(last)) {
          if (last[0].first < first[0].first) invalid("a range from more to less");
          all.push_back({first[0].first, last[0].first});
          continue;
        }
        at_ = minus;
      }
      all.insert(all.end(), first.begin(), first.end());
    }
    all = tidy(std::move(all));
    return negated ? complement(all) : all;
  }

  static bool is_one(const CharacterSet& set) {
    return set.size() == 1 && set[0].first == set[0].last;
  }

  CharacterSet class_member() {
    const char32_t c = take_any("a '[' without its ']'");
    if (c == '\\') return escape(true);
    return {{c, c}};
  }

  CharacterSet escape(bool in_class) {
    const char32_t c = take_any("nothing behind a '\\'");
    const auto one = [](char32_t value) { return CharacterSet{{value, value}}; };
    switch (c) {
      case 'd':
        return digits();
      case 'D':
        return complement(digits());
      case 'w':
        return word_characters();
      case 'W':
        return complement(word_characters());
      case 's':
        return spaces();
      case 'S':
        return complement(spaces());
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'v':
        return one('\v');
      case 'f':
        return one('\f');
      case 'r':
        return one('\r');
      case 'b':
        if (in_class) return one('\b');
        unsupported("\\b");
      case 'B':
        unsupported("\\B");
      case 'p':
      case 'P':
        unsupported("\\p");
      case 'k':
        unsupported("a back-reference");
      case 'x':
        return one(hex(2));
      case 'u':
        return one(unicode_escape());
      case 'c': {
        const char32_t letter = take_any("nothing behind \"\\c\"");
        if (!is_ascii_letter(letter)) invalid("no letter behind \"\\c\"");
        return one(letter % 32);
      }
      case '0':
        return one(0);
      default:
        break;
    }
    if (c >= '1' && c <= '9') unsupported("a back-reference");
    if (is_ascii_letter(c)) invalid(std::string("an unknown escape \\") + static_cast<char>(c));
    return one(c);
  }

  static bool is_ascii_letter(char32_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  }

  static std::optional<uint32_t> hex_digit(char32_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return std::nullopt;
  }

  char32_t hex(int num_digits) {
    char32_t value = 0;
    for (int i = 0; i < num_digits; ++i) {
      const auto digit = hex_digit(take_any("too few hexadecimal digits"));
      if (!digit) invalid("too few hexadecimal digits");
      value = value * 16 + *digit;
    }
    return value;
  }

  // Two escapes that are a surrogate pair are one character.
  char32_t unicode_escape() {
    char32_t value = 0;
    if (take('{')) {
      do {
        const auto digit = hex_digit(take_any("an escape without its '}'"));
        if (!digit) invalid("an escape without its '}'");
        value = value * 16 + *digit;
        if (value > kMaxCharacter) invalid("an escape beyond U+10FFFF");
      } while (!take('}'));
    } else {
      value = hex(4);
      if (value >= 0xd800 && value < 0xdc00 && take("\\u")) {
        const char32_t low = hex(4);
        if (low < 0xdc00 || low > 0xdfff) invalid("half of a surrogate pair");
        value = 0x10000 + ((value - 0xd800) << 10) + (low - 0xdc00);
      }
    }
    if (value >= 0xd800 && value <= 0xdfff) invalid("half of a surrogate pair");
    return value;
  }

  std::vector<char32_t> characters_;
  size_t at_ = 0;
};

// ---- A nondeterministic automaton (Thompson 1968), then its sets of states ----

class PatternAutomaton {
 public:
  PatternAutomaton(const Node& root, WorkBudget& budget) : budget_(budget) {
    start_ = add_state();
    // Text may stand in front of the match and behind it.
    states_[start_].steps.push_back({{{0, kMaxCharacter}}, start_});
    end_ = build(root, start_);
    whole_ = add_state();
    states_[end_].jumps.push_back({whole_, Jump::kAlways});
    states_[whole_].steps.push_back({{{0, kMaxCharacter}}, whole_});
  }

  CharacterAutomaton determinise() {
    CharacterAutomaton out;
    std::map<Set, uint32_t> ids;
    std::vector<Set> sets;
    const auto id_of = [&](Set set) {
      const auto [found, added] =
          ids.try_emplace(std::move(set), static_cast<uint32_t>(out.states.size()));
      if (added) {
        sets.push_back(found->first);
        out.states.emplace_back();
      }
      return found->second;
    };
    // The set of the beginning has no id: '^' sets it apart from the same states later on.
    sets.push_back(close({start_}, true, false));
    out.states.emplace_back();
    for (uint32_t i = 0; i < sets.size(); ++i) {
      const Set from = sets[i];
      const Set at_end = close(from, i == 0, true);
      out.states[i].accepts = std::binary_search(at_end.begin(), at_end.end(), whole_);
      // Where the set of targets changes.
      std::vector<char32_t> borders;
      for (const uint32_t state : from)
        for (const Step& step : states_[state].steps)
          for (const Range& range : step.set) {
            borders.push_back(range.first);
            borders.push_back(range.last + 1);
          }
      budget_.spend(borders.size() + 1);
      std::sort(borders.begin(), borders.end());
      borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
      for (size_t b = 0; b + 1 < borders.size(); ++b) {
        Set targets;
        for (const uint32_t state : from)
          for (const Step& step : states_[state].steps)
            if (contains(step.set, borders[b])) targets.push_back(step.target);
        if (targets.empty()) continue;
        budget_.spend(targets.size());
        const uint32_t target = id_of(close(std::move(targets), false, false));
        std::vector<CharacterAutomaton::Step>& steps = out.states[i].steps;
        if (!steps.empty() && steps.back().target == target && steps.back().last + 1 == borders[b])
          steps.back().last = borders[b + 1] - 1;
        else
          steps.push_back({borders[b], borders[b + 1] - 1, target});
      }
    }
    return out;
  }

 private:
  using Set = std::vector<uint32_t>;  // ascending
  struct Step {
    CharacterSet set;
    uint32_t target;
  };
  struct Jump {
    enum Where { kAlways, kAtBegin, kAtEnd };
    uint32_t target;
    Where where;
  };
  struct State {
    std::vector<Step> steps;
    std::vector<Jump> jumps;
  };

  uint32_t add_state() {
    budget_.spend(1);
    states_.emplace_back();
    return static_cast<uint32_t>(states_.size() - 1);
  }
  void jump(uint32_t from, uint32_t to, Jump::Where where = Jump::kAlways) {
    budget_.spend(1);
    states_[from].jumps.push_back({to, where});
  }

  // From `from` over what the node matches to the state that is returned.
  uint32_t build(const Node& node, uint32_t from) {
    switch (node.kind) {
      case Node::Kind::kSet: {
        const uint32_t to = add_state();
        budget_.spend(node.set.size());
        states_[from].steps.push_back({node.set, to});
        return to;
      }
      case Node::Kind::kBegin:
      case Node::Kind::kEnd: {
        const uint32_t to = add_state();
        jump(from, to, node.kind == Node::Kind::kBegin ? Jump::kAtBegin : Jump::kAtEnd);
        return to;
      }
      case Node::Kind::kSequence:
        for (const NodePtr& child : node.children) from = build(*child, from);
        return from;
      case Node::Kind::kChoice: {
        const uint32_t to = add_state();
        for (const NodePtr& child : node.children) {
          // A branch of its own: what it adds to its first state stays apart.
          const uint32_t begin = add_state();
          jump(from, begin);
          jump(build(*child, begin), to);
        }
        return to;
      }
      case Node::Kind::kRepeat:
        break;
    }
    const Node& child = *node.children[0];
    for (uint32_t i = 0; i < node.min; ++i) from = build(child, from);
    if (!node.max) {
      const uint32_t again = add_state();
      jump(from, again);
      jump(build(child, again), again);
      return again;
    }
    const uint32_t to = add_state();
    jump(from, to);
    for (uint32_t i = node.min; i < *node.max; ++i) {
      from = build(child, from);
      jump(from, to);
    }
    return to;
  }

  // The states that are reached without a character. Once a match is certain, nothing else counts.
  Set close(Set set, bool at_begin, bool at_end) {
    std::vector<uint32_t> pending = set;
    seen_.resize(states_.size(), 0);
    ++round_;
    for (const uint32_t state : set) seen_[state] = round_;
    while (!pending.empty()) {
      const uint32_t at = pending.back();
      pending.pop_back();
      for (const Jump& jump : states_[at].jumps) {
        if ((jump.where == Jump::kAtBegin && !at_begin) || (jump.where == Jump::kAtEnd && !at_end))
          continue;
        if (seen_[jump.target] == round_) continue;
        seen_[jump.target] = round_;
        set.push_back(jump.target);
        pending.push_back(jump.target);
      }
    }
    budget_.spend(set.size());
    if (seen_[whole_] == round_) return {whole_};
    std::sort(set.begin(), set.end());
    set.erase(std::unique(set.begin(), set.end()), set.end());
    return set;
  }

  static bool contains(const CharacterSet& set, char32_t c) {
    const auto after = std::partition_point(set.begin(), set.end(),
                                            [&](const Range& range) { return range.last < c; });
    return after != set.end() && after->first <= c;
  }

  WorkBudget& budget_;
  std::vector<State> states_;
  uint32_t start_ = 0, end_ = 0, whole_ = 0;
  std::vector<uint32_t> seen_;  // the round in which a state was last reached
  uint32_t round_ = 0;
};

}  // namespace

CharacterAutomaton compile_pattern(std::string_view pattern, WorkBudget& budget) {
  budget.spend(pattern.size());
  const NodePtr root = Parser(pattern).parse();
  return PatternAutomaton(*root, budget).determinise();
}

}  // namespace onecard::text::grammar
