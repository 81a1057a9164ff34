// Recursive transition networks over bytes: finite automata, one a rule, whose edges consume a byte
// or call a rule (Woods 1970). What a grammar compiles to, and what a grammar state walks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace onecard::text::grammar {

using StateId = uint32_t;
using RuleId = uint32_t;

/// Nothing leaves this state: the sentence is over.
constexpr StateId kFinalState = 0;

struct Edge {
  uint8_t first = 0, last = 0;  // bytes, inclusive
  StateId target = 0;
};

/// Bounds on the characters of a counted text.
struct LengthRange {
  uint32_t min = 0;
  uint32_t max = ~uint32_t{0};  // no bound
};

/// No bound on the length.
constexpr uint32_t kNoLength = 0;

struct Call {
  RuleId rule = 0;
  StateId return_to = 0;
  uint32_t length = kNoLength;  // into Automaton::lengths: of the counted text of this call
  friend bool operator==(const Call&, const Call&) = default;
};

struct Automaton {
  struct State {
    uint32_t edges_begin = 0, edges_end = 0;
    uint32_t jumps_begin = 0, jumps_end = 0;  // to states, without a byte
    uint32_t calls_begin = 0, calls_end = 0;
    bool accepts = false;  // its rule may end here
    bool free = false;     // of text that is not constrained
    bool counted = false;  // of a text whose characters its call counts
    bool between = false;  // of a counted text: one more character is complete here
    uint32_t to_end = 0;   // of a counted text: the characters that it needs at least to end
  };
  std::vector<State> states;
  std::vector<Edge> edges;
  std::vector<StateId> jumps;
  std::vector<Call> calls;
  std::vector<StateId> rules;  // where each begins
  std::vector<LengthRange> lengths;
  StateId start = 0;

  /// What a state does besides following bytes; a state without all this needs no expansion.
  bool is_plain(StateId id) const {
    const State& state = states[id];
    return !state.accepts && state.jumps_begin == state.jumps_end &&
           state.calls_begin == state.calls_end;
  }
  /// Nothing leaves the state but the end of its rule.
  bool only_accepts(StateId id) const {
    const State& state = states[id];
    return state.accepts && state.edges_begin == state.edges_end &&
           state.jumps_begin == state.jumps_end && state.calls_begin == state.calls_end;
  }
  /// The two do the same, but for the states to which their edges, of the same bytes, lead.
  bool differ_in_edges_alone(StateId a, StateId b) const;
};

/// Where words stand in text, byte by byte (Aho and Corasick 1975). Word i is met in a node when
/// `node(i)` is it.
class WordMatcher {
 public:
  explicit WordMatcher(const std::vector<std::string>& words);
  int num_nodes() const { return static_cast<int>(word_.size()); }
  int next(int node, uint8_t byte) const { return next_[static_cast<size_t>(node) * 256 + byte]; }
  /// The word that ends in this node, or -1.
  int word_at(int node) const { return word_[static_cast<size_t>(node)]; }

 private:
  std::vector<int> next_;  // 256 a node
  std::vector<int> word_;
};

class AutomatonBuilder {
 public:
  /// Throws kResourceExhausted when states and edges together exceed `max_nodes`.
  explicit AutomatonBuilder(size_t max_nodes);

  StateId add_state();
  void set_accepting(StateId state) { states_[state].accepts = true; }
  void set_free(StateId state) { states_[state].free = true; }
  void add_edge(StateId from, uint8_t first, uint8_t last, StateId to);
  void add_jump(StateId from, StateId to);
  void add_call(StateId from, RuleId rule, StateId return_to);

  /// A rule that begins in a new state; define its states from rule_start().
  RuleId add_rule();
  StateId rule_start(RuleId rule) const { return rules_[rule]; }

  /// From `from` over the bytes of `text` to a new state, which is returned.
  StateId add_literal(StateId from, std::string_view text);
  void add_literal(StateId from, std::string_view text, StateId to);
  /// Over any one of the texts, which share their beginnings.
  void add_literals(StateId from, const std::vector<std::string>& texts, StateId to);
  /// From `from` over a call of `rule` to a new state, which is returned.
  StateId add_called(StateId from, RuleId rule);

  /// A call whose counted text has a length in `range`.
  void add_counted_call(StateId from, RuleId rule, LengthRange range, StateId return_to);

  /// How the characters of a text are written in bytes.
  struct Machine {
    struct Step {
      uint8_t first = 0, last = 0;
      int to = 0;
    };
    struct State {
      std::vector<Step> steps;
      bool between = false;  // characters: one is complete, or none has begun
      bool ends = false;     // the text may end here
    };
    std::vector<State> states;  // begins in the first one
    int add_state();
    /// Joined to the step that was added last, if it goes on from there to the same state.
    void add_step(int from, uint8_t first, uint8_t last, int to);
    static Machine any_byte();
    /// Well-formed UTF-8 without the ASCII characters that `excluded` holds; the first state stands
    /// between any two characters.
    static Machine utf8(std::string_view excluded, uint8_t first_ascii);
  };

  /// Text of the machine's characters that holds none of `words`; a word that has a target leads
  /// there instead.
  struct WordTarget {
    std::string word;
    StateId target = kFinalState;  // kFinalState: the word may not come
  };
  struct Text {
    std::vector<StateId> ends;  // where it may end
    uint32_t min_length = 0;    // characters of the shortest one; no text at all: kNoText
  };
  static constexpr uint32_t kNoText = ~uint32_t{0};
  enum class Counted : bool { kNo, kYes };
  /// Joined to `from`. A counted text belongs to a rule that is called with a length.
  Text add_text(StateId from, const Machine& machine, const std::vector<WordTarget>& words,
                Counted counted = Counted::kNo);

  /// Checks that every rule can end and that none calls itself before it has consumed a byte;
  /// throws kInvalidArgument. The rules' ways that cannot end are removed.
  Automaton build(StateId start);

 private:
  struct BuildState {
    std::vector<Edge> edges;
    std::vector<StateId> jumps;
    std::vector<Call> calls;
    bool accepts = false;
    bool free = false;
    bool counted = false;
    bool between = false;
    uint32_t to_end = 0;
  };
  void count_node();
  std::vector<bool> find_states_that_end() const;
  void check_left_recursion() const;

  size_t max_nodes_;
  size_t num_nodes_ = 0;
  std::vector<BuildState> states_;
  std::vector<StateId> rules_;
  std::vector<LengthRange> lengths_ = {LengthRange()};  // kNoLength
};

}  // namespace onecard::text::grammar
