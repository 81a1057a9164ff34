#include "text/grammar/automaton.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>

#include "base/error.h"

namespace onecard::text::grammar {

bool Automaton::differ_in_edges_alone(StateId a, StateId b) const {
  if (a == b) return true;
  if (a == kFinalState || b == kFinalState) return false;
  const State& x = states[a];
  const State& y = states[b];
  const auto same = [](const auto& all, uint32_t begin_a, uint32_t end_a, uint32_t begin_b,
                       uint32_t end_b, const auto& equal) {
    return std::equal(all.begin() + begin_a, all.begin() + end_a, all.begin() + begin_b,
                      all.begin() + end_b, equal);
  };
  return x.accepts == y.accepts && x.free == y.free && x.counted == y.counted &&
         x.between == y.between && x.to_end == y.to_end &&
         same(edges, x.edges_begin, x.edges_end, y.edges_begin, y.edges_end,
              [](const Edge& of_a, const Edge& of_b) {
                return of_a.first == of_b.first && of_a.last == of_b.last;
              }) &&
         same(jumps, x.jumps_begin, x.jumps_end, y.jumps_begin, y.jumps_end, std::equal_to<>()) &&
         same(calls, x.calls_begin, x.calls_end, y.calls_begin, y.calls_end, std::equal_to<>());
}

WordMatcher::WordMatcher(const std::vector<std::string>& words) {
  constexpr int kNone = -1;
  const auto next_of = [&](int node, size_t byte) -> int& {
    return next_[static_cast<size_t>(node) * 256 + byte];
  };
  const auto add_node = [&] {
    next_.resize(next_.size() + 256, kNone);
    word_.push_back(-1);
    return num_nodes() - 1;
  };
  add_node();
  for (size_t i = 0; i < words.size(); ++i) {
    int node = 0;
    for (const char c : words[i]) {
      const auto byte = static_cast<uint8_t>(c);
      if (next_of(node, byte) == kNone) {
        const int child = add_node();
        next_of(node, byte) = child;
      }
      node = next_of(node, byte);
    }
    word_[static_cast<size_t>(node)] = static_cast<int>(i);
  }
  // Breadth first: where no word goes on, the longest suffix that a word begins with does.
  std::vector<int> suffix(word_.size(), 0);
  std::deque<int> queue = {0};
  while (!queue.empty()) {
    const int node = queue.front();
    queue.pop_front();
    int& word = word_[static_cast<size_t>(node)];
    if (word < 0) word = word_[static_cast<size_t>(suffix[static_cast<size_t>(node)])];
    for (size_t byte = 0; byte < 256; ++byte) {
      const int shorter = node == 0 ? 0 : next_of(suffix[static_cast<size_t>(node)], byte);
      int& next = next_of(node, byte);
      if (next == kNone) {
        next = shorter;
      } else {
        suffix[static_cast<size_t>(next)] = shorter;
        queue.push_back(next);
      }
    }
  }
}

AutomatonBuilder::AutomatonBuilder(size_t max_nodes) : max_nodes_(max_nodes) {
  add_state();  // kFinalState
}

void AutomatonBuilder::count_node() {
  if (++num_nodes_ > max_nodes_)
    throw Error(ErrorCode::kResourceExhausted,
                "grammar: it takes more than " + std::to_string(max_nodes_) + " nodes");
}

StateId AutomatonBuilder::add_state() {
  count_node();
  states_.emplace_back();
  return static_cast<StateId>(states_.size() - 1);
}

void AutomatonBuilder::add_edge(StateId from, uint8_t first, uint8_t last, StateId to) {
  count_node();
  states_[from].edges.push_back({first, last, to});
}

void AutomatonBuilder::add_jump(StateId from, StateId to) {
  count_node();
  states_[from].jumps.push_back(to);
}

void AutomatonBuilder::add_call(StateId from, RuleId rule, StateId return_to) {
  count_node();
  states_[from].calls.push_back({rule, return_to});
}

void AutomatonBuilder::add_counted_call(StateId from, RuleId rule, LengthRange range,
                                        StateId return_to) {
  add_call(from, rule, return_to);
  states_[from].calls.back().length = static_cast<uint32_t>(lengths_.size());
  lengths_.push_back(range);
}

RuleId AutomatonBuilder::add_rule() {
  rules_.push_back(add_state());
  return static_cast<RuleId>(rules_.size() - 1);
}

StateId AutomatonBuilder::add_literal(StateId from, std::string_view text) {
  for (const char c : text) {
    const StateId to = add_state();
    add_edge(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
    from = to;
  }
  return from;
}

void AutomatonBuilder::add_literal(StateId from, std::string_view text, StateId to) {
  add_jump(add_literal(from, text), to);
}

void AutomatonBuilder::add_literals(StateId from, const std::vector<std::string>& texts,
                                    StateId to) {
  std::map<std::pair<StateId, char>, StateId> children;
  for (const std::string& text : texts) {
    StateId state = from;
    for (const char c : text) {
      const auto [child, added] = children.try_emplace({state, c}, kFinalState);
      if (added) {
        child->second = add_state();
        add_edge(state, static_cast<uint8_t>(c), static_cast<uint8_t>(c), child->second);
      }
      state = child->second;
    }
    add_jump(state, to);
  }
}

StateId AutomatonBuilder::add_called(StateId from, RuleId rule) {
  const StateId to = add_state();
  add_call(from, rule, to);
  return to;
}

int AutomatonBuilder::Machine::add_state() {
  states.emplace_back();
  return static_cast<int>(states.size()) - 1;
}

void AutomatonBuilder::Machine::add_step(int from, uint8_t first, uint8_t last, int to) {
  std::vector<Step>& steps = states[static_cast<size_t>(from)].steps;
  if (!steps.empty() && steps.back().to == to && steps.back().last + 1 == first)
    steps.back().last = last;
  else
    steps.push_back({first, last, to});
}

AutomatonBuilder::Machine AutomatonBuilder::Machine::any_byte() {
  Machine machine;
  machine.states = {{{{0x00, 0xff, 0}}, true, true}};
  return machine;
}

// Table 3-7 of the Unicode Standard.
AutomatonBuilder::Machine AutomatonBuilder::Machine::utf8(std::string_view excluded,
                                                          uint8_t first_ascii) {
  enum : int { kBegin, kOne, kTwo, kThree, kAfterE0, kAfterEd, kAfterF0, kAfterF4, kNumStates };
  Machine machine;
  machine.states.resize(kNumStates);
  machine.states[kBegin].between = machine.states[kBegin].ends = true;
  for (int byte = first_ascii; byte < 0x80; ++byte) {
    const auto ascii = static_cast<uint8_t>(byte);
    if (excluded.find(static_cast<char>(byte)) == excluded.npos)
      machine.add_step(kBegin, ascii, ascii, kBegin);
  }
  machine.add_step(kBegin, 0xc2, 0xdf, kOne);
  machine.add_step(kBegin, 0xe0, 0xe0, kAfterE0);
  machine.add_step(kBegin, 0xe1, 0xec, kTwo);
  machine.add_step(kBegin, 0xed, 0xed, kAfterEd);
  machine.add_step(kBegin, 0xee, 0xef, kTwo);
  machine.add_step(kBegin, 0xf0, 0xf0, kAfterF0);
  machine.add_step(kBegin, 0xf1, 0xf3, kThree);
  machine.add_step(kBegin, 0xf4, 0xf4, kAfterF4);
  machine.add_step(kAfterE0, 0xa0, 0xbf, kOne);
  machine.add_step(kAfterEd, 0x80, 0x9f, kOne);
  machine.add_step(kAfterF0, 0x90, 0xbf, kTwo);
  machine.add_step(kAfterF4, 0x80, 0x8f, kTwo);
  machine.add_step(kThree, 0x80, 0xbf, kTwo);
  machine.add_step(kTwo, 0x80, 0xbf, kOne);
  machine.add_step(kOne, 0x80, 0xbf, kBegin);
  return machine;
}

AutomatonBuilder::Text AutomatonBuilder::add_text(StateId from, const Machine& machine,
                                                  const std::vector<WordTarget>& words,
                                                  Counted counted) {
  std::vector<std::string> word_texts;
  for (const WordTarget& word : words) word_texts.push_back(word.word);
  const WordMatcher matcher(word_texts);

  // A state of the text is a state of the machine and a node of the matcher.
  struct Place {
    int machine_state = 0, node = 0;
    StateId state = kFinalState;
  };
  const auto num_nodes = static_cast<size_t>(matcher.num_nodes());
  std::vector<StateId> states(machine.states.size() * num_nodes, kFinalState);  // or not made yet
  std::vector<Place> places;
  const auto state_of = [&](int machine_state, int node) {
    StateId& state =
        states[static_cast<size_t>(machine_state) * num_nodes + static_cast<size_t>(node)];
    if (state == kFinalState) {
      state = add_state();
      places.push_back({machine_state, node, state});
    }
    return state;
  };
  const StateId begin = state_of(0, 0);
  add_jump(from, begin);
  for (size_t i = 0; i < places.size(); ++i) {
    const auto [machine_state, node, state] = places[i];
    for (const Machine::Step& step : machine.states[static_cast<size_t>(machine_state)].steps) {
      // Neighbouring bytes that go to one node are one edge.
      for (int byte = step.first; byte <= step.last;) {
        const int first = byte;
        const int next = matcher.next(node, static_cast<uint8_t>(byte));
        while (byte <= step.last && matcher.next(node, static_cast<uint8_t>(byte)) == next) ++byte;
        const int word = matcher.word_at(next);
        const StateId target =
            word < 0 ? state_of(step.to, next) : words[static_cast<size_t>(word)].target;
        if (word < 0 || target != kFinalState)
          add_edge(state, static_cast<uint8_t>(first), static_cast<uint8_t>(byte - 1), target);
      }
    }
  }

  Text text;
  for (const Place& place : places)
    if (machine.states[static_cast<size_t>(place.machine_state)].ends)
      text.ends.push_back(place.state);
  if (counted == Counted::kNo) return text;

  for (const Place& place : places) {
    const Machine::State& own = machine.states[static_cast<size_t>(place.machine_state)];
    states_[place.state].counted = true;
    states_[place.state].between = own.between;
    states_[place.state].to_end = own.ends ? 0 : kNoText;
  }
  // By rounds, backwards, like find_states_that_end().
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = places.size(); i-- > 0;) {
      BuildState& state = states_[places[i].state];
      for (const Edge& edge : state.edges) {
        const BuildState& next = states_[edge.target];
        if (!next.counted || next.to_end == kNoText) continue;
        const uint32_t length = next.to_end + (next.between ? 1 : 0);
        changed = changed || length < state.to_end;
        state.to_end = std::min(state.to_end, length);
      }
    }
  }
  text.min_length = states_[begin].to_end;
  return text;
}

// States from which an accepting one of their rule can be reached, by rounds until nothing changes.
// States are made in the order in which text passes them, so going backwards takes few rounds.
std::vector<bool> AutomatonBuilder::find_states_that_end() const {
  std::vector<bool> ends(states_.size(), false);
  ends[kFinalState] = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = states_.size(); i-- > 0;) {
      if (ends[i]) continue;
      const BuildState& state = states_[i];
      ends[i] = state.accepts ||
                std::any_of(state.edges.begin(), state.edges.end(),
                            [&](const Edge& edge) { return ends[edge.target]; }) ||
                std::any_of(state.jumps.begin(), state.jumps.end(),
                            [&](StateId target) { return ends[target]; }) ||
                std::any_of(state.calls.begin(), state.calls.end(), [&](const Call& call) {
                  return ends[rules_[call.rule]] && ends[call.return_to];
                });
      changed = changed || ends[i];
    }
  }
  return ends;
}

// A rule that reaches itself without a byte would be expanded for ever. No rule is empty (it has to
// consume a byte before it accepts), so only what stands in front of the first byte matters.
void AutomatonBuilder::check_left_recursion() const {
  std::vector<std::vector<RuleId>> first_calls(rules_.size());
  for (size_t rule = 0; rule < rules_.size(); ++rule) {
    std::vector<StateId> stack = {rules_[rule]};
    std::vector<StateId> seen = stack;
    while (!stack.empty()) {
      const BuildState& state = states_[stack.back()];
      stack.pop_back();
      ONECARD_ASSERT(!state.accepts);
      for (const Call& call : state.calls) first_calls[rule].push_back(call.rule);
      for (const StateId target : state.jumps) {
        if (std::find(seen.begin(), seen.end(), target) != seen.end()) continue;
        seen.push_back(target);
        stack.push_back(target);
      }
    }
  }
  // Rules that call nothing first, then those that call only such, ...: what is left is a circle.
  std::vector<size_t> num_open(rules_.size());
  std::vector<std::vector<RuleId>> callers(rules_.size());
  std::vector<RuleId> done;
  for (size_t rule = 0; rule < rules_.size(); ++rule) {
    num_open[rule] = first_calls[rule].size();
    for (const RuleId callee : first_calls[rule])
      callers[callee].push_back(static_cast<RuleId>(rule));
    if (num_open[rule] == 0) done.push_back(static_cast<RuleId>(rule));
  }
  for (size_t i = 0; i < done.size(); ++i)
    for (const RuleId caller : callers[done[i]])
      if (--num_open[caller] == 0) done.push_back(caller);
  require(done.size() == rules_.size(), ErrorCode::kInvalidArgument,
          "schema: a $ref leads back to itself with nothing in between");
}

Automaton AutomatonBuilder::build(StateId start) {
  check_left_recursion();
  const std::vector<bool> ends = find_states_that_end();
  require(ends[start], ErrorCode::kInvalidArgument, "schema: it has no finite instance");
  Automaton automaton;
  automaton.start = start;
  automaton.rules = rules_;
  automaton.lengths = lengths_;
  automaton.states.reserve(states_.size());
  for (const BuildState& from : states_) {
    Automaton::State state;
    state.accepts = from.accepts;
    state.free = from.free;
    state.counted = from.counted;
    state.between = from.between;
    state.to_end = from.to_end;
    state.edges_begin = static_cast<uint32_t>(automaton.edges.size());
    for (const Edge& edge : from.edges)
      if (ends[edge.target]) automaton.edges.push_back(edge);
    state.edges_end = static_cast<uint32_t>(automaton.edges.size());
    state.jumps_begin = static_cast<uint32_t>(automaton.jumps.size());
    for (const StateId target : from.jumps)
      if (ends[target]) automaton.jumps.push_back(target);
    state.jumps_end = static_cast<uint32_t>(automaton.jumps.size());
    state.calls_begin = static_cast<uint32_t>(automaton.calls.size());
    for (const Call& call : from.calls)
      if (ends[rules_[call.rule]] && ends[call.return_to]) automaton.calls.push_back(call);
    state.calls_end = static_cast<uint32_t>(automaton.calls.size());
    automaton.states.push_back(state);
  }
  return automaton;
}

}  // namespace onecard::text::grammar
