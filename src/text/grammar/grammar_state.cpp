#include <utility>

#include "base/error.h"
#include "text/grammar/grammar.h"
#include "text/grammar/matcher.h"

namespace onecard::text {

GrammarState::GrammarState(std::shared_ptr<const Grammar> grammar,
                           std::shared_ptr<const TokenTrie> trie)
    : matcher_(std::make_shared<grammar::Matcher>(std::move(grammar), std::move(trie))),
      positions_(matcher_->start()) {}

bool GrammarState::accept(std::string_view bytes) {
  if (ended_) return bytes.empty();
  std::vector<Position> from = positions_, to;
  for (const char c : bytes) {
    matcher_->step(from, static_cast<uint8_t>(c), to);
    if (to.empty()) return false;
    std::swap(from, to);
  }
  positions_ = std::move(from);
  return true;
}

bool GrammarState::accept_token(int32_t token_id) {
  const TokenTrie& trie = matcher_->trie();
  if (token_id < 0 || token_id >= trie.vocab_size() || ended_) return false;
  if (trie.is_end(token_id)) return ended_ = is_complete();
  const std::string_view bytes = trie.token_bytes(token_id);
  return bytes.empty() ? is_free() : accept(bytes);
}

bool GrammarState::fill_mask(std::span<uint64_t> allowed) const {
  require(allowed.size() == matcher_->trie().mask_words(), ErrorCode::kInvalidArgument,
          "grammar mask: it has to have one bit a token");
  const grammar::TokenSet nothing(allowed.size());
  return (ended_ ? nothing : matcher_->tokens_after(positions_)).restrict(allowed);
}

bool GrammarState::is_complete() const { return matcher_->is_complete(positions_); }
bool GrammarState::is_free() const { return matcher_->is_free(positions_); }

}  // namespace onecard::text
