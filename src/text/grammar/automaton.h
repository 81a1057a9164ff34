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

struct Call {
  RuleId rule = 0;
  StateId return_to = 0;
};

struct Automaton {
  struct State {
    uint32_t edges_begin = 0, edges_end = 0;
    uint32_t jumps_begin = 0, jumps_end = 0;  // to states, without a byte
    uint32_t calls_begin = 0, calls_end = 0;
    bool accepts = false;  // its rule may end here
    bool free = false;     // of text that is not constrained
  };
  std::vector<State> states;
  std::vector<Edge> edges;
  std::vector<StateId> jumps;
  std::vector<Call> calls;
  std::vector<StateId> rules;  // where each begins
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
};

/// Where words stand in text, byte by byte (Aho and Corasick 1975). Word i is met in a node when
/// `node(i)` is it.
class WordMatcher {
 public:
  explicit WordMatcher(const std::vector<std::string>& words);
  int num_nodes() const { return static_cast<int>(next_.size()); }
  int next(int node, uint8_t byte) const { return next_[static_cast<size_t>(node)][byte]; }
  /// The word that ends in this node, or -1.
  int word_at(int node) const { return word_[static_cast<size_t>(node)]; }

 private:
  std::vector<std::vector<int>> next_;  // 256 a node
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

  /// One way through the bytes of some characters: which byte leads to which of its own states.
  struct Machine {
    struct Step {
      int from = 0;
      uint8_t first = 0, last = 0;
      int to = 0;
    };
    int num_states = 1;  // 0 is both its beginning and where a character has ended
    std::vector<Step> steps;
    static Machine any_byte();
    /// Well-formed UTF-8 without the ASCII characters that `excluded` holds.
    static Machine utf8(std::string_view excluded, uint8_t first_ascii);
  };

  /// Text of the machine's characters that holds none of `words`; a word that has a target leads
  /// there instead. Returns the text's states at the ends of characters, the first of them, which
  /// is joined to `from`, at the front.
  struct WordTarget {
    std::string word;
    StateId target = kFinalState;  // kFinalState: the word may not come
  };
  std::vector<StateId> add_text(StateId from, const Machine& machine,
                                const std::vector<WordTarget>& words);

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
  };
  void count_node();
  std::vector<bool> find_states_that_end() const;
  void check_left_recursion() const;

  size_t max_nodes_;
  size_t num_nodes_ = 0;
  std::vector<BuildState> states_;
  std::vector<StateId> rules_;
};

}  // namespace onecard::text::grammar
