// The classes of characters that the pre-tokeniser tells apart, one byte of flags a code point.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace onecard::text {

enum CharClass : uint8_t {
  kLetter = 1,       // \p{L}
  kMark = 2,         // \p{M}
  kNumber = 4,       // \p{N}
  kPunctuation = 8,  // \p{P}
  kSymbol = 16,      // \p{S}
  kSpace = 32,       // White_Space
  kCjk = 64,         // U+4E00-9FA5 and U+3040-30FF: ideographs and kana
};

/// Flags by code point, 0x110000 of them, from the linked ICU (Unicode 15 or newer). Built on first
/// use, safe from any thread.
const std::vector<uint8_t>& char_classes();

}  // namespace onecard::text
