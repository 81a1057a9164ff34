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
      frames_(2),  // kUnknownStack and kEmptyStack
      levels_(static_cast<size_t>(trie_->max_depth()) + 1) {}

uint32_t Matcher::push(StateId return_to, uint32_t parent) {
  const uint64_t key = uint64_t{return_to} << 32 | parent;
  const auto [found, added] = frame_ids_.try_emplace(key, static_cast<uint32_t>(frames_.size()));
  if (added) frames_.push_back({return_to, parent});
  return found->second;
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
      visit({automaton_.jumps[i], at.stack});
    for (uint32_t i = state.calls_begin; i < state.calls_end; ++i) {
      // Behind a call that ends its rule nothing waits: what waits is what waited for the rule.
      const Call& call = automaton_.calls[i];
      const bool last = automaton_.only_accepts(call.return_to);
      visit({automaton_.rules[call.rule], last ? at.stack : push(call.return_to, at.stack)});
    }
    if (!state.accepts) continue;
    if (at.stack == kUnknownStack)
      returned_ = true;
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

void Matcher::step(const Positions& from, uint8_t byte, Positions& to) {
  to.clear();
  seen_.clear();
  for (const Position& position : from) {
    const Automaton::State& state = automaton_.states[position.state];
    for (uint32_t i = state.edges_begin; i < state.edges_end; ++i) {
      const Edge& edge = automaton_.edges[i];
      if (edge.first <= byte && byte <= edge.last) expand({edge.target, position.stack}, to);
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
// from one position to one position, by table.
void Matcher::walk(uint32_t trie_node, const Positions& from, TokenSet& tokens,
                   std::vector<uint32_t>* returns) {
  const std::span<const TokenTrie::Node> nodes = trie_->nodes();
  const size_t base_depth = nodes[trie_node].depth;
  levels_[0] = from;
  const std::vector<StateId>* ways = nullptr;
  StateId ways_of = kNoWay;
  for (uint32_t i = trie_node + 1; i < nodes[trie_node].subtree_end;) {
    const TokenTrie::Node& node = nodes[i];
    const size_t depth = node.depth - base_depth;
    const Positions& at = levels_[depth - 1];
    Positions& to = levels_[depth];
    if (at.size() == 1) {
      if (at[0].state != ways_of) {
        ways_of = at[0].state;
        ways = &ways_from(ways_of);
      }
      const StateId way = (*ways)[node.byte];
      if (way == kNoWay) {
        i = node.subtree_end;
        continue;
      }
      if (way != kSeveralWays) {
        to.assign(1, {way, at[0].stack});
        tokens.add(trie_->tokens_at(node));
        ++i;
        continue;
      }
    }
    returned_ = false;
    step(at, node.byte, to);
    if (returned_) returns->push_back(i);
    if (returned_ || !to.empty()) tokens.add(trie_->tokens_at(node));
    i = to.empty() ? node.subtree_end : i + 1;
  }
}

const Matcher::StateTokens& Matcher::tokens_of(StateId state) {
  const auto [known, added] = state_tokens_.try_emplace(state, trie_->mask_words());
  if (added) walk(0, {{state, kUnknownStack}}, known->second.tokens, &known->second.returns);
  return known->second;
}

size_t Matcher::Hash::operator()(const Positions& positions) const {
  uint64_t hash = positions.size();
  for (const Position& position : positions) {
    hash ^= key_of(position);
    hash *= 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio: spreads neighbouring keys
    hash = std::rotl(hash, 29);
  }
  return static_cast<size_t>(hash);
}

const TokenSet& Matcher::tokens_after(const Positions& positions) {
  if (const auto found = memory_.find(positions); found != memory_.end()) return found->second;
  TokenSet tokens(trie_->mask_words());
  Positions behind;
  for (const Position& position : positions) {
    const StateTokens& own = tokens_of(position.state);
    tokens.add(own.tokens);
    if (position.stack == kEmptyStack || own.returns.empty()) continue;
    // Where the rule may have ended inside a token, the token goes on in the caller.
    behind.clear();
    seen_.clear();
    const Frame frame = frames_[position.stack];
    expand({frame.return_to, frame.parent}, behind);
    for (const uint32_t node : own.returns) walk(node, behind, tokens, nullptr);
  }
  if (is_complete(positions)) tokens.add(trie_->end_ids());
  if (is_free(positions)) tokens.add(trie_->silent_ids());
  if (memory_bytes_ > kMaxMemoryBytes) {
    memory_.clear();
    memory_bytes_ = 0;
  }
  memory_bytes_ += tokens.num_bytes() + positions.size() * sizeof(Position) + 64;
  return memory_.emplace(positions, std::move(tokens)).first->second;
}

}  // namespace onecard::text::grammar
