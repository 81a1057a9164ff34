// Byte-level BPE as a model's tokenizer.json describes it. Every byte string can be encoded, and
// decodes to itself. Built once at start; encoding is const and safe from any number of threads.
//
// The file is untrusted. What this class implements is the DeepSeek family: byte-level BPE without
// normaliser, unknown token, byte fallback or dropout, the pre-tokeniser of text/pre_tokenizer.h,
// and added tokens without strip or single-word flags. Anything else is refused by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace onecard::text {

using TokenId = int32_t;

/// Which added tokens are recognised in a text; what is not recognised is ordinary text.
enum class AddedTokens {
  kAll,
  kNotChat,  // all but the tokens that structure a chat: see Tokenizer::is_chat_token()
  kNone,
};

/// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const ByteRange&) const = default;
};

class Tokenizer {
 public:
  /// Reads the tokenizer.json at `path`. Throws kNotFound or kIo when it cannot be read,
  /// kDataCorrupt when it is broken, kUnsupported when it asks for something that is not
  /// implemented.
  static Tokenizer load(const std::string& path);
  /// The same from the bytes of a tokenizer.json.
  static Tokenizer parse(std::string_view tokenizer_json);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// The ids of `text`; no token is added. Linear in the length but for a logarithm, whatever the
  /// text is. Bytes that are not UTF-8 are encoded byte by byte.
  std::vector<TokenId> encode(std::string_view text, AddedTokens added = AddedTokens::kAll) const;

  /// As encode(text, kAll), but a chat token that touches one of the `client_ranges` is ordinary
  /// text: what a client typed cannot forge the structure of a prompt. The ranges ascend and do not
  /// overlap. Text runs on across their ends, so that ordinary text gives the same ids as without.
  std::vector<TokenId> encode(std::string_view text,
                              std::span<const ByteRange> client_ranges) const;

  /// One more than the largest id. Ids below it may be unused.
  int vocab_size() const;
  /// The bytes that the token stands for; for an added token its UTF-8 text; empty for an unused
  /// id. Throws kInvalidArgument when `id` is not in [0, vocab_size()). The view lives as long as
  /// this.
  std::string_view token_bytes(TokenId id) const;
  /// The token as tokenizer.json spells it (byte-level alphabet); empty for an unused id.
  const std::string& token_text(TokenId id) const;
  /// The id of the added token with exactly this text.
  std::optional<TokenId> added_token(std::string_view text) const;
  bool is_added(TokenId id) const;
  /// The flag of tokenizer.json. Chat tokens such as <think> do not have it.
  bool is_special(TokenId id) const;
  /// BOS, EOS, the turn headers, the think tags, the tool markup marker, the reminder, the image
  /// placeholder and the task tokens, found by text (chat_tokens.h).
  bool is_chat_token(TokenId id) const;

 private:
  struct Tables;
  explicit Tokenizer(std::unique_ptr<Tables> tables);
  std::unique_ptr<Tables> tables_;
};

}  // namespace onecard::text
