// The trie of a chat model's vocabulary.
#pragma once

#include <memory>

#include "text/grammar/token_trie.h"
#include "text/tokenizer.h"

namespace onecard::text {

/// The tokens that begin somebody else's turn end the output. Of the added tokens only the think
/// tags and the marker of tool markup can be part of a constrained text. Costs some 100 ms for a
/// large vocabulary: build it once.
std::shared_ptr<const TokenTrie> make_token_trie(const Tokenizer& tokenizer);

}  // namespace onecard::text
