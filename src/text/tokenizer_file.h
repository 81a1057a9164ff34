// A tokenizer.json, checked and reduced to what encoding needs. Untrusted bytes in, a consistent
// table or an error out.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace onecard::text {

struct TokenEntry {
  std::string text;   // as the file spells it
  std::string bytes;  // what it stands for
  bool is_used = false;
  bool is_added = false;
  bool is_special = false;
};

/// left and right merge into merged; the earlier in the list, the sooner.
struct MergeRule {
  int32_t left = 0;
  int32_t right = 0;
  int32_t merged = 0;
};

struct TokenizerFile {
  std::vector<TokenEntry> tokens;  // by id
  std::vector<MergeRule> merges;   // by rank, no pair twice
  std::array<int32_t, 256> byte_ids{};
  int num_model_tokens = 0;  // used entries of the BPE vocabulary
};

/// Throws kDataCorrupt when the file is broken or contradicts itself, kUnsupported when it asks for
/// something that is not implemented; the message names the member.
TokenizerFile parse_tokenizer_file(std::string_view tokenizer_json);

/// The bytes that a token of the byte-level alphabet stands for. A text with a character outside
/// that alphabet stands for its own UTF-8.
std::string byte_level_decode(std::string_view text);

}  // namespace onecard::text
