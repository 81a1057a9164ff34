// UTF-8 that arrives in arbitrary pieces.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace onecard::text {

/// One code point at the head of a byte string.
struct CodePoint {
  char32_t value = 0;
  int num_bytes = 0;   // 1 to 4 when well formed; otherwise the length of the broken part, and
  bool valid = false;  // the value is then U+FFFD
};

/// Decodes the code point at the head of `bytes`, which is not empty. Overlong forms, surrogates
/// and values above U+10FFFF are broken. The broken part is the longest prefix of a well-formed
/// sequence (Unicode's "maximal subpart"), at least one byte.
CodePoint decode_code_point(std::string_view bytes);

/// Appends the UTF-8 of a code point that is a scalar value.
void append_code_point(std::string& out, char32_t code_point);

/// True when `bytes` may be the beginning of a well-formed sequence that is not complete yet.
bool is_incomplete_sequence(std::string_view bytes);

/// Turns bytes into text: what is complete goes out at once, at most three bytes of an incomplete
/// sequence are held, every broken part becomes one U+FFFD. The concatenated output does not depend
/// on how the bytes were cut.
class Utf8Assembler {
 public:
  /// Appends the text that `bytes` completes to `out`.
  void push(std::string_view bytes, std::string& out);
  /// Appends U+FFFD if something is held; the assembler is then as new.
  void finish(std::string& out);
  size_t num_held_bytes() const { return held_.size(); }

 private:
  std::string held_;
};

}  // namespace onecard::text
