// Cuts text into the pieces inside which BPE merges, as the DeepSeek tokenizers do: three regular
// expressions, one after the other, each inside the pieces that the earlier ones left.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace onecard::text {

/// The expressions that PreTokenizer stands for, in the order of tokenizer.json.
extern const std::array<std::string_view, 3> kPreTokenizerPatterns;

/// True when `pattern` is one of the spellings of kPreTokenizerPatterns[pattern_idx]: files write
/// CR, LF and the double quote with or without a backslash.
bool is_pre_tokenizer_pattern(std::string_view pattern, size_t pattern_idx);

/// The end of the piece that begins at `begin`, which is below text.size() and the beginning of the
/// text or the end of another piece. Each byte is looked at a bounded number of times. A byte that
/// is not part of UTF-8 is a character without class.
size_t piece_end(std::string_view text, size_t begin);

}  // namespace onecard::text
