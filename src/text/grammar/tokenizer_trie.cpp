#include "text/grammar/tokenizer_trie.h"

#include <string_view>
#include <vector>

#include "text/chat_tokens.h"

namespace onecard::text {

std::shared_ptr<const TokenTrie> make_token_trie(const Tokenizer& tokenizer) {
  std::vector<std::string_view> bytes;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view own = tokenizer.token_bytes(id);
    const bool structure = own == kThinkOpen || own == kThinkClose || own == kDsml;
    bytes.push_back(tokenizer.is_added(id) && !structure ? std::string_view() : own);
  }
  std::vector<int32_t> ends;
  for (const std::string_view stop : kStopTokens)
    if (const auto id = tokenizer.added_token(stop)) ends.push_back(*id);
  return std::make_shared<const TokenTrie>(bytes, ends);
}

}  // namespace onecard::text
