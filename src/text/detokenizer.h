// Token ids to text, one id at a time and byte-exact: a token may end inside a character, which is
// then held until it is complete. One for each sequence; not safe from several threads.
#pragma once

#include <string>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace onecard::text {

class Detokenizer {
 public:
  /// `tokenizer` has to outlive this object.
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  /// Appends the text that `id` completes to `out`, perhaps none. Bytes that can never become UTF-8
  /// give one U+FFFD for each broken part. Throws kInvalidArgument for an id out of range.
  void push(TokenId id, std::string& out) { bytes_.push(tokenizer_->token_bytes(id), out); }
  /// Appends U+FFFD if an incomplete character is held. The object is then as new.
  void finish(std::string& out) { bytes_.finish(out); }

 private:
  const Tokenizer* tokenizer_;
  Utf8Assembler bytes_;
};

}  // namespace onecard::text
