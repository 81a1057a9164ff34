// What a request demands of the tokens themselves: an end to reasoning, a forced text behind it,
// words that must not appear, a grammar.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "text/grammar/grammar.h"
#include "text/grammar/token_trie.h"
#include "text/tokenizer.h"

namespace onecard::server {

struct ConstraintOptions {
  bool starts_in_reasoning = false;
  std::optional<int64_t> reasoning_budget_tokens;  // then </think> is forced
  std::string forced_after_reasoning;              // directly behind </think>
  std::vector<std::string> bad_words;
  std::shared_ptr<const text::Grammar> grammar;  // null: free
  std::shared_ptr<const text::TokenTrie> trie;   // of the tokenizer; for the grammar
};

/// Null when `options` demand nothing. Throws kUnsupported when the tokenizer has no </think> and
/// one is needed.
std::unique_ptr<engine::TokenConstraint> make_constraint(const ConstraintOptions& options,
                                                         const text::Tokenizer& tokenizer);

}  // namespace onecard::server
