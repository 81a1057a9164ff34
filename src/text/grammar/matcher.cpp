#include "text/grammar/matcher.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"

namespace onecard::text::grammar {
namespace {

constexpr size_t kMaxListedIds = 512;
// What is remembered about sets of positions; beyond it everything is forgotten and made again.
constexpr size_t kMaxMemoryBytes = size_t{16} << 20;
constexpr size_t kMaxLinearSearch = 16;
// Ways in which one text can be read at once, those without a byte of their own included. Schemas
// whose alternatives begin alike inside each other can ask for exponentially many.
constexpr size_t kMaxWays = 4096;
// States are compared over texts of so many bytes: few tokens are longer, and they are walked.
constexpr size_t kMaxAlikeBytes = 24;
// Over fewer bytes most of the vocabulary would have to be walked all the same.
constexpr size_t kMinAlikeBytes = 10;
// What a comparison may cost; a state with fewer bytes that can come next is walked faster.
constexpr size_t kMaxPairs = 2048;
constexpr size_t kMaxCompared = 8;
constexpr int kMinNextBytes = 12;
constexpr uint64_t kSpread = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio

uint64_t key_of(Position position) { return uint64_t{position.state} << 32 | position.stack; }

}  // namespace

// ---- TokenSet ----

void TokenSet::add(std::span<const int32_t> ids) {
  if (bits_.empty()) {
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    if (ids_.size() > kMaxListedIds) to_bits();
    return;
  }
  for (const int32_t id : ids) bits_[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
}

void TokenSet::add(const TokenSet& other) {
  if (other.bits_.empty()) return add(std::span(other.ids_));
  if (bits_.empty()) to_bits();
  for (size_t i = 0; i < mask_words_; ++i) bits_[i] |= other.bits_[i];
}

void TokenSet::remove(std::span<const int32_t> ids) {
  if (bits_.empty()) to_bits();
  for (const int32_t id : ids) bits_[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << (id % 64));
}

void TokenSet::to_bits() {
  const std::vector<int32_t> ids = std::exchange(ids_, {});
  bits_.assign(mask_words_, 0);
  add(ids);
}

bool TokenSet::restrict(std::span<uint64_t> allowed) const {
  uint64_t cleared = 0;
  const auto keep = [&](uint64_t& word, uint64_t bits) {
    cleared |= word & ~bits;
    word &= bits;
  };
  if (!bits_.empty()) {
    for (size_t i = 0; i < mask_words_; ++i) keep(allowed[i], bits_[i]);
    return cleared != 0;
  }
  std::vector<uint64_t> bits(mask_words_, 0);
  for (const int32_t id : ids_) bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  for (size_t i = 0; i < mask_words_; ++i) keep(allowed[i], bits[i]);
  return cleared != 0;
}

// ---- Positions ----

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie)
    : grammar_(std::move(grammar)),
      automaton_(grammar_->automaton()),
      trie_(std::move(trie)),
      ways_(automaton_.states.size()),
      levels_(static_cast<size_t>(trie_->max_depth()) + 1) {
  push({.length = kUnknownLength});
  frames_.emplace_back();  // kEmptyStack
  longer_.resize(frames_.size(), 0);
}

size_t Matcher::FrameHash::operator()(const Frame& frame) const {
  uint64_t hash = (uint64_t{frame.return_to} << 32 | frame.parent) * kSpread;
  hash ^= uint64_t{frame.length} << 32 | frame.count;
  return static_cast<size_t>(std::rotl(hash * kSpread, 29));
}

uint32_t Matcher::push(const Frame& frame) {
  const auto [found, added] = frame_ids_.try_emplace(frame, static_cast<uint32_t>(frames_.size()));
  if (added) {
    frames_.push_back(frame);
    longer_.push_back(0);
  }
  return found->second;
}

// The stack whose counted text has one more character: asked for with every character of the
// vocabulary, so it is a link and no search.
uint32_t Matcher::push_longer(uint32_t stack) {
  if (longer_[stack] == 0) {
    Frame frame = frames_[stack];
    ++frame.count;
    const uint32_t longer = push(frame);
    longer_[stack] = longer;
  }
  return longer_[stack];
}

// The stack behind a way from one state to another of the same rule: characters of counted texts
// are counted. kNoStack when the text becomes too long, or ends too short.
uint32_t Matcher::pass(StateId from, StateId to, uint32_t stack) {
  const Automaton::State& before = automaton_.states[from];
  const Automaton::State& behind = automaton_.states[to];
  if (!before.counted && !behind.counted) return stack;
  const Frame& frame = frames_[stack];
  if (is_unknown(frame)) {
    if (!before.counted) return stack;
    if (behind.counted) return behind.between ? push_longer(stack) : stack;
    return push({.length = kEndedText, .count = frame.count + (behind.between ? 1 : 0)});
  }
  const LengthRange& length = automaton_.lengths[frame.length];
  if (!behind.counted) {
    if (frame.count < length.min) return kNoStack;
    return push({.return_to = frame.return_to, .parent = frame.parent});
  }
  const bool longer = before.counted && behind.between;
  if (uint64_t{frame.count} + (longer ? 1 : 0) + behind.to_end > length.max) return kNoStack;
  // Where nothing bounds it from above, a count goes no further than it matters.
  if (!longer || (length.max == LengthRange().max && frame.count >= length.min)) return stack;
  return push_longer(stack);
}

bool Matcher::see(Position position) {
  if (seen_.size() < kMaxLinearSearch) {
    if (std::find(seen_.begin(), seen_.end(), position) != seen_.end()) return false;
    seen_.push_back(position);
    return true;
  }
  if (seen_.size() == kMaxLinearSearch) {
    seen_at_.clear();
    for (const Position& earlier : seen_) seen_at_.insert(key_of(earlier));
  }
  if (!seen_at_.insert(key_of(position)).second) return false;
  require(seen_.size() < kMaxWays, ErrorCode::kResourceExhausted,
          "grammar: the output can be read in too many ways");
  seen_.push_back(position);
  return true;
}

// Adds the positions with edges to which `position` leads without a byte. Positions that were seen
// since seen_ was cleared are in `out` already.
void Matcher::expand(Position position, Positions& out) {
  if (!see(position)) return;
  if (automaton_.is_plain(position.state)) {
    out.push_back(position);
    return;
  }
  pending_.assign(1, position);
  const auto visit = [&](Position next) {
    if (see(next)) pending_.push_back(next);
  };
  while (!pending_.empty()) {
    const Position at = pending_.back();
    pending_.pop_back();
    const Automaton::State& state = automaton_.states[at.state];
    if (state.edges_begin != state.edges_end || at.state == kFinalState) out.push_back(at);
    for (uint32_t i = state.jumps_begin; i < state.jumps_end; ++i)
      if (const uint32_t stack = pass(at.state, automaton_.jumps[i], at.stack); stack != kNoStack)
        visit({automaton_.jumps[i], stack});
    for (uint32_t i = state.calls_begin; i < state.calls_end; ++i) {
      // Behind a call that ends its rule nothing waits: what waits is what waited for the rule.
      const Call& call = automaton_.calls[i];
      const bool last = call.length == kNoLength && automaton_.only_accepts(call.return_to);
      visit({automaton_.rules[call.rule],
             last ? at.stack : push({call.return_to, at.stack, call.length, /*count=*/0})});
    }
    if (!state.accepts) continue;
    if (is_unknown(frames_[at.stack]))
      returned_.push_back(frames_[at.stack].count);
    else if (at.stack == kEmptyStack)
      visit({kFinalState, kEmptyStack});
    else
      visit({frames_[at.stack].return_to, frames_[at.stack].parent});
  }
}

Positions Matcher::start() {
  Positions positions;
  seen_.clear();
  expand({automaton_.start, kEmptyStack}, positions);
  return positions;
}

void Matcher::step(std::span<const Position> from, uint8_t byte, Positions& to) {
  to.clear();
  seen_.clear();
  for (const Position& position : from) {
    const Automaton::State& state = automaton_.states[position.state];
    for (uint32_t i = state.edges_begin; i < state.edges_end; ++i) {
      const Edge& edge = automaton_.edges[i];
      if (byte < edge.first || edge.last < byte) continue;
      const uint32_t stack = pass(position.state, edge.target, position.stack);
      if (stack != kNoStack) expand({edge.target, stack}, to);
    }
  }
}

bool Matcher::is_complete(const Positions& positions) const {
  return std::any_of(positions.begin(), positions.end(),
                     [](const Position& p) { return p.state == kFinalState; });
}

bool Matcher::is_free(const Positions& positions) const {
  return std::any_of(positions.begin(), positions.end(),
                     [&](const Position& p) { return automaton_.states[p.state].free; });
}

// ---- Tokens ----

const std::vector<StateId>& Matcher::ways_from(StateId state) {
  std::vector<StateId>& ways = ways_[state];
  if (!ways.empty()) return ways;
  ways.assign(256, kNoWay);
  const Automaton::State& from = automaton_.states[state];
  for (uint32_t i = from.edges_begin; i < from.edges_end; ++i) {
    const Edge& edge = automaton_.edges[i];
    const StateId way = automaton_.is_plain(edge.target) ? edge.target : kSeveralWays;
    for (size_t byte = edge.first; byte <= edge.last; ++byte)
      ways[byte] = ways[byte] == kNoWay || ways[byte] == way ? way : kSeveralWays;
  }
  return ways;
}

// Adds the tokens below `trie_node` that lead somewhere from `from`. Most of a vocabulary is walked
// from one position to one position, by table. `state_tokens`, where the stack is not known, gets
// what depends on it; no longer tokens than those which it has from a state that is alike are met.
void Matcher::walk(uint32_t trie_node, const Positions& from, StateTokens* state_tokens,
                   TokenSet& tokens) {
  const std::span<const TokenTrie::Node> nodes = trie_->nodes();
  const size_t base_depth = nodes[trie_node].depth;
  const size_t known_bytes = state_tokens == nullptr ? 0 : state_tokens->alike_bytes;
  levels_[0].has_only = false;
  levels_[0].many = from;
  if (state_tokens != nullptr)
    for (Level& level : levels_) level.counted = nullptr;
  const std::vector<StateId>* ways = nullptr;
  StateId ways_of = kNoWay;
  for (uint32_t i = trie_node + 1; i < nodes[trie_node].subtree_end;) {
    const TokenTrie::Node& node = nodes[i];
    if (node.deepest <= known_bytes) {
      i = node.subtree_end;
      continue;
    }
    const bool is_known = node.depth <= known_bytes;
    const size_t depth = node.depth - base_depth;
    const std::span<const Position> at = levels_[depth - 1].positions();
    Level& to = levels_[depth];
    to.has_only = false;
    if (at.size() == 1) {
      const auto [state, stack] = at[0];
      if (state != ways_of) {
        ways_of = state;
        ways = &ways_from(ways_of);
      }
      const StateId way = (*ways)[node.byte];
      if (way == kNoWay) {
        i = node.subtree_end;
        continue;
      }
      if (way != kSeveralWays) {
        to.only = {way, pass(state, way, stack)};
        if (to.only.stack == kNoStack) {
          i = node.subtree_end;
          continue;
        }
        to.has_only = true;
        if (!is_known) add_tokens(node, to, /*returned=*/false, state_tokens, tokens);
        ++i;
        continue;
      }
    }
    returned_.clear();
    step(at, node.byte, to.many);
    if (!is_known) {
      for (const uint32_t count : returned_) {
        if (node.deepest > node.depth) state_tokens->returns.push_back({i, count});
        state_tokens->max_count = std::max(state_tokens->max_count, count);
      }
      add_tokens(node, to, !returned_.empty(), state_tokens, tokens);
    }
    i = to.many.empty() ? node.subtree_end : i + 1;
  }
}

// The tokens that end in `node`, behind which there are the positions of `level`.
void Matcher::add_tokens(const TokenTrie::Node& node, Level& level, bool returned,
                         StateTokens* state_tokens, TokenSet& tokens) {
  if (node.num_tokens == 0) return;
  const std::span<const int32_t> ids = trie_->tokens_at(node);
  const auto add_counted = [&](bool ended, uint32_t count) {
    const StateTokens::Length length{ended, count};
    if (level.counted == nullptr || level.counted->first != length) {
      state_tokens->max_count = std::max(state_tokens->max_count, count);
      level.counted = &*state_tokens->counted_tokens.try_emplace(length, trie_->mask_words()).first;
    }
    level.counted->second.add(ids);
  };
  for (const Position& position : level.positions()) {
    const Automaton::State& state = automaton_.states[position.state];
    const Frame& frame = frames_[position.stack];
    const bool ended = frame.length == kEndedText;
    if (!is_unknown(frame) || (!state.counted && !ended))
      return tokens.add(ids);  // whatever the other positions are
    add_counted(ended, frame.count + (ended ? 0 : state.to_end));
  }
  if (!returned) return;
  for (const uint32_t count : returned_) add_counted(true, count);
}

const Matcher::StateTokens& Matcher::tokens_of(StateId state) {
  const auto [known, added] = state_tokens_.try_emplace(state, trie_->mask_words());
  StateTokens& tokens = known->second;
  if (!added) return tokens;
  find_alike(state, tokens);
  walk(0, {{state, kUnknownStack}}, &tokens, tokens.tokens);
  return tokens;
}

// For how many bytes the two states lead, whatever the text, to states that differ in nothing but
// where further text leads: breadth first over the pairs of states that one text leads to. The
// states of a bounded repetition, for one, are alike until the bound comes near.
size_t Matcher::num_bytes_alike(StateId a, StateId b) {
  pairs_.assign(1, {a, b, 0});
  paired_.clear();
  for (size_t i = 0; i < pairs_.size(); ++i) {
    const StatePair pair = pairs_[i];
    const Automaton::State& x = automaton_.states[pair.a];
    const Automaton::State& y = automaton_.states[pair.b];
    // A difference that shows behind the pair's text is counted with the text.
    if (i == kMaxPairs || !automaton_.differ_in_edges_alone(pair.a, pair.b))
      return pair.num_bytes == 0 ? 0 : pair.num_bytes - 1;
    if (pair.num_bytes == kMaxAlikeBytes) continue;
    for (uint32_t edge = 0; edge < x.edges_end - x.edges_begin; ++edge) {
      const StateId to_a = automaton_.edges[x.edges_begin + edge].target;
      const StateId to_b = automaton_.edges[y.edges_begin + edge].target;
      if (to_a != to_b && paired_.insert(uint64_t{to_a} << 32 | to_b).second)
        pairs_.push_back({to_a, to_b, pair.num_bytes + 1});
    }
  }
  return kMaxAlikeBytes;
}

// Looks for a state with whose tokens a walk from `state` can be spared, but for the longest.
void Matcher::find_alike(StateId state, StateTokens& tokens) {
  const Automaton::State& own = automaton_.states[state];
  uint64_t next_bytes = 0;
  int num_next = 0;
  for (uint32_t i = own.edges_begin; i < own.edges_end; ++i) {
    const Edge& edge = automaton_.edges[i];
    next_bytes = std::rotl((next_bytes ^ edge.first << 8 ^ edge.last) * kSpread, 29);
    num_next += edge.last - edge.first + 1;
  }
  if (num_next < kMinNextBytes) return;
  std::vector<StateId>& walked = walked_[next_bytes];
  const StateTokens* alike = nullptr;
  size_t num_bytes = kMinAlikeBytes;
  for (const StateId other : walked) {
    const size_t shared = num_bytes_alike(state, other);
    if (shared < num_bytes || (alike != nullptr && shared == num_bytes)) continue;
    alike = &state_tokens_.at(other);
    num_bytes = shared;
  }
  if (alike == nullptr) {
    if (walked.size() < kMaxCompared) walked.push_back(state);
    return;
  }
  tokens.alike = alike;
  tokens.alike_bytes = num_bytes;
  tokens.max_count = alike->max_count;
}

size_t Matcher::Hash::operator()(const Positions& positions) const {
  uint64_t hash = positions.size();
  for (const Position& position : positions) {
    hash ^= key_of(position);
    hash *= kSpread;
    hash = std::rotl(hash, 29);
  }
  return static_cast<size_t>(hash);
}

// A count only matters near its bounds: far from them one stands for all.
Position Matcher::without_needless_count(Position position) {
  if (!automaton_.states[position.state].counted) return position;
  Frame frame = frames_[position.stack];
  const LengthRange& length = automaton_.lengths[frame.length];
  const uint32_t max_count = tokens_of(position.state).max_count;
  if (frame.count < length.min || uint64_t{frame.count} + max_count > length.max) return position;
  frame.count = length.min;
  return {position.state, push(frame)};
}

void Matcher::add_tokens_after(Position position, TokenSet& tokens) {
  const StateTokens& own = tokens_of(position.state);
  const Frame frame = frames_[position.stack];
  const LengthRange& length = automaton_.lengths[frame.length];
  const auto may_have = [&](bool ended, uint32_t count) {
    const uint64_t total = uint64_t{frame.count} + count;
    return total <= length.max && (!ended || total >= length.min);
  };
  const auto add_within_rule = [&](const StateTokens& from, TokenSet& to) {
    to.add(from.tokens);
    for (const auto& [added, ids] : from.counted_tokens)
      if (may_have(added.ended, added.count)) to.add(ids);
  };
  if (own.alike != nullptr) {
    TokenSet shared(trie_->mask_words());
    add_within_rule(*own.alike, shared);
    shared.remove(trie_->tokens_longer_than(own.alike_bytes));
    tokens.add(shared);
  }
  add_within_rule(own, tokens);
  if (position.stack == kEmptyStack) return;
  // Where the rule may have ended inside a token, the token goes on in the caller.
  Positions behind;
  seen_.clear();
  expand({frame.return_to, frame.parent}, behind);
  const auto add_behind = [&](const StateTokens::Return& end) {
    if (may_have(true, end.count)) walk(end.trie_node, behind, nullptr, tokens);
  };
  if (own.alike != nullptr)
    for (const StateTokens::Return& end : own.alike->returns)
      if (trie_->nodes()[end.trie_node].depth <= own.alike_bytes) add_behind(end);
  for (const StateTokens::Return& end : own.returns) add_behind(end);
}

const TokenSet& Matcher::tokens_after(const Positions& positions) {
  Positions key;
  for (const Position& position : positions) key.push_back(without_needless_count(position));
  if (const auto found = memory_.find(key); found != memory_.end()) return found->second;
  TokenSet tokens(trie_->mask_words());
  for (const Position& position : key) add_tokens_after(position, tokens);
  if (is_complete(positions)) tokens.add(trie_->end_ids());
  if (is_free(positions)) tokens.add(trie_->silent_ids());
  if (memory_bytes_ > kMaxMemoryBytes) {
    memory_.clear();
    memory_bytes_ = 0;
  }
  memory_bytes_ += tokens.num_bytes() + key.size() * sizeof(Position) + 64;
  return memory_.emplace(std::move(key), std::move(tokens)).first->second;
}

}  // namespace onecard::text::grammar
