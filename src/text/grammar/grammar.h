// Constrained decoding: which tokens may come next so that the output keeps to a format. A Grammar
// is compiled once from a request, immutable and shared; a GrammarState belongs to one sequence and
// is copied to speculate. Nothing here samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/grammar/token_trie.h"
#include "text/output_parser.h"

namespace onecard::text {

/// Bounds on what an untrusted schema may cost.
struct GrammarLimits {
  size_t max_nodes = 100'000;         // states and edges of the compiled grammar
  int max_schema_depth = 32;          // schemas inside each other, references followed
  size_t max_pattern_work = 300'000;  // steps of making automata of all patterns
};

/// What an output has to keep to.
struct GrammarRequest {
  /// What the prompt ended in. Reasoning is free; the constraint sets in behind </think>.
  ParserStart start = ParserStart::kContent;
  /// kJsonObject and kJsonSchema: the content is one JSON value (schemas: schema_compiler.h).
  ResponseFormat response_format;
  /// Calls follow the model's markup; the arguments of tools with `strict` follow their schemas,
  /// those of others are free. kRequired and kNamed force a call; kAuto leaves the text free until
  /// the model opens a block of calls by itself.
  std::vector<ToolDefinition> tools;
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  GrammarLimits limits;
};

namespace grammar {
struct Automaton;
class Matcher;
}  // namespace grammar

class Grammar {
 public:
  /// Null when the request leaves everything free. Throws kUnsupported for a keyword that is not
  /// implemented, kInvalidArgument for what is no valid schema or has no instance, both with the
  /// place in the request, and kResourceExhausted beyond the limits.
  static std::shared_ptr<const Grammar> compile(const GrammarRequest& request);

  explicit Grammar(grammar::Automaton automaton);
  ~Grammar();
  const grammar::Automaton& automaton() const { return *automaton_; }

 private:
  std::unique_ptr<const grammar::Automaton> automaton_;
};

/// Where one output stands in its grammar. Copies are cheap and share what they have computed, so
/// all copies of one state belong to one thread. Any call may throw kResourceExhausted when the
/// text can be read in thousands of ways at once; this ends the sequence.
class GrammarState {
 public:
  GrammarState(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie);

  /// Follows text. False when it leaves the grammar: the state is then unchanged.
  bool accept(std::string_view bytes);
  /// Follows a token. An end id is accepted where is_complete(), and nothing follows it.
  bool accept_token(int32_t token_id);

  /// Clears the bits of tokens that may not come next; bit `id % 64` of word `id / 64`, and
  /// mask_words() words. Returns false when it clears nothing.
  bool fill_mask(std::span<uint64_t> allowed) const;

  /// The text so far is a whole one: it may end here.
  bool is_complete() const;
  /// The constraint has not set in.
  bool is_free() const;

  /// A place in the automaton, and the calls that have led there (grammar_state.cpp).
  struct Position {
    uint32_t state = 0;
    uint32_t stack = 0;
    friend bool operator==(const Position&, const Position&) = default;
  };

 private:
  std::shared_ptr<grammar::Matcher> matcher_;
  std::vector<Position> positions_;  // all that the text so far may have led to
  bool ended_ = false;
};

}  // namespace onecard::text
