// Walks an automaton over the vocabulary. What it computes about tokens is kept: for each state
// once (whatever calls have led there), and for each set of positions that text has led to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/grammar.h"
#include "text/grammar/token_trie.h"

namespace onecard::text::grammar {

using Position = GrammarState::Position;
using Positions = std::vector<Position>;

/// A set of token ids: the list while it is short, else bits.
class TokenSet {
 public:
  explicit TokenSet(size_t mask_words) : mask_words_(mask_words) {}
  void add(std::span<const int32_t> ids);
  void add(const TokenSet& other);
  void remove(std::span<const int32_t> ids);
  /// Keeps the bits of `allowed` that are in the set; false when that keeps all of them.
  bool restrict(std::span<uint64_t> allowed) const;
  size_t num_bytes() const { return ids_.size() * sizeof(int32_t) + bits_.size() * 8; }

 private:
  void to_bits();

  size_t mask_words_;
  std::vector<int32_t> ids_;
  std::vector<uint64_t> bits_;  // in use when not empty
};

/// Shared by the copies of one grammar state; not thread-safe.
class Matcher {
 public:
  Matcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie);

  const TokenTrie& trie() const { return *trie_; }
  Positions start();
  /// The positions behind `byte`; none when it cannot come next.
  void step(std::span<const Position> from, uint8_t byte, Positions& to);
  bool is_complete(const Positions& positions) const;
  bool is_free(const Positions& positions) const;
  /// The tokens that may follow, end ids included where the text is complete.
  const TokenSet& tokens_after(const Positions& positions);

 private:
  // Calls that wait for their return, as a tree that is only added to: equal stacks are one node.
  // The call of a counted text holds how many characters there are so far.
  struct Frame {
    StateId return_to = 0;
    uint32_t parent = 0;
    uint32_t length = kNoLength;  // which bounds; kUnknownLength: not known, like all the rest
    uint32_t count = 0;
    friend bool operator==(const Frame&, const Frame&) = default;
  };
  struct FrameHash {
    size_t operator()(const Frame& frame) const;
  };
  static constexpr uint32_t kUnknownLength = ~uint32_t{0};
  static constexpr uint32_t kEndedText = kUnknownLength - 1;  // not known, and the text has ended
  static constexpr uint32_t kUnknownStack = 0;                // calls that led here are not known
  static constexpr uint32_t kEmptyStack = 1;  // there are none: the text is complete behind it
  static constexpr uint32_t kNoStack = ~uint32_t{0};  // the counted text cannot go this way

  // What follows a state whatever has called its rule.
  struct StateTokens {
    explicit StateTokens(size_t mask_words) : tokens(mask_words) {}
    struct Return {
      uint32_t trie_node = 0;  // at which the rule may have ended,
      uint32_t count = 0;      // after so many more characters of its counted text
    };
    // Of a counted text: whether a token may follow depends on the length so far.
    struct Length {
      bool ended = false;  // the token goes beyond the text
      uint32_t count = 0;  // characters that it adds; if it stays inside, those that it makes
                           // necessary, too
      friend auto operator<=>(const Length&, const Length&) = default;
    };
    TokenSet tokens;  // those that stay within the rule or end exactly with it
    std::map<Length, TokenSet> counted_tokens;
    std::vector<Return> returns;
    uint32_t max_count = 0;  // of all that is counted
    // Not null: of tokens of at most `alike_bytes` bytes, what is known of `alike` holds here, and
    // what stands above are longer ones alone.
    const StateTokens* alike = nullptr;
    size_t alike_bytes = 0;
  };

  struct StatePair {
    StateId a = 0, b = 0;
    size_t num_bytes = 0;  // of the shortest text that leads to both
  };

  // Where the text at one depth of the tree has led in walk(), which is nearly always to one
  // position.
  struct Level {
    Position only;
    bool has_only = false;
    Positions many;  // otherwise
    // The counted tokens that were met last at this depth: characters are mostly of one byte.
    std::pair<const StateTokens::Length, TokenSet>* counted = nullptr;

    std::span<const Position> positions() const {
      return has_only ? std::span(&only, 1) : std::span(many);
    }
  };

  uint32_t push(const Frame& frame);
  uint32_t push_longer(uint32_t stack);
  static bool is_unknown(const Frame& frame) { return frame.length >= kEndedText; }
  uint32_t pass(StateId from, StateId to, uint32_t stack);
  void expand(Position position, Positions& out);
  bool see(Position position);
  void walk(uint32_t trie_node, const Positions& from, StateTokens* state_tokens, TokenSet& tokens);
  size_t num_bytes_alike(StateId a, StateId b);
  void find_alike(StateId state, StateTokens& tokens);
  void add_tokens(const TokenTrie::Node& node, Level& level, bool returned,
                  StateTokens* state_tokens, TokenSet& tokens);
  const std::vector<StateId>& ways_from(StateId state);
  const StateTokens& tokens_of(StateId state);
  void add_tokens_after(Position position, TokenSet& tokens);
  Position without_needless_count(Position position);

  std::shared_ptr<const Grammar> grammar_;
  const Automaton& automaton_;
  std::shared_ptr<const TokenTrie> trie_;

  std::vector<Frame> frames_;
  std::unordered_map<Frame, uint32_t, FrameHash> frame_ids_;
  std::vector<uint32_t> longer_;  // of each frame, that with one more character; 0: not made yet

  // Scratch of expand(): positions of the set that is being made.
  std::vector<Position> seen_;
  std::unordered_set<uint64_t> seen_at_;  // of seen_, when there are many
  std::vector<Position> pending_;
  std::vector<uint32_t> returned_;  // counts with which a rule ended whose caller is not known

  // Where a byte leads from a state: kNoWay, kSeveralWays (or one that has to be expanded), or a
  // plain state. By state; empty where no token has been walked from it.
  static constexpr StateId kNoWay = ~StateId{0};
  static constexpr StateId kSeveralWays = kNoWay - 1;
  std::vector<std::vector<StateId>> ways_;

  std::vector<Level> levels_;  // scratch of walk(): by depth
  std::unordered_map<StateId, StateTokens> state_tokens_;
  // States from which the whole vocabulary has been walked, by the bytes that they let come next.
  std::unordered_map<uint64_t, std::vector<StateId>> walked_;
  // Scratch of num_bytes_alike(): pairs of states in the order in which text leads to them.
  std::vector<StatePair> pairs_;
  std::unordered_set<uint64_t> paired_;
  struct Hash {
    size_t operator()(const Positions& positions) const;
  };
  std::unordered_map<Positions, TokenSet, Hash> memory_;
  size_t memory_bytes_ = 0;
};

}  // namespace onecard::text::grammar
