#include "text/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace onecard::text {
namespace {

std::string whole(std::string_view bytes) {
  std::string text;
  Utf8Assembler assembler;
  assembler.push(bytes, text);
  assembler.finish(text);
  return text;
}

TEST(Utf8, EveryCodePointComesBack) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string bytes;
    append_code_point(bytes, c);
    const CodePoint decoded = decode_code_point(bytes + "x");
    ASSERT_TRUE(decoded.valid) << uint32_t(c);
    ASSERT_EQ(decoded.value, c);
    ASSERT_EQ(decoded.num_bytes, static_cast<int>(bytes.size()));
  }
}

// The examples of Unicode 15, section 3.9 (tables 3-8 to 3-11): one U+FFFD for each maximal
// subpart.
TEST(Utf8, BrokenPartsAreMaximalSubparts) {
  const std::string r = "\ufffd";
  EXPECT_EQ(whole("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(whole("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(whole("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(whole("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

TEST(Utf8Assembler, CutsDoNotMatter) {
  const std::string bytes = std::string("a\u00e9\u4e2d\U0001f600") + "\xF0\x9F\xE1\x80z\xC3" + "(" +
                            std::string("\xED\xA0\x80\xF4\x90");
  const std::string expected = whole(bytes);
  for (size_t first = 0; first <= bytes.size(); ++first) {
    for (size_t second = first; second <= bytes.size(); ++second) {
      Utf8Assembler assembler;
      std::string text;
      assembler.push(bytes.substr(0, first), text);
      EXPECT_LE(assembler.num_held_bytes(), 3u);
      assembler.push(bytes.substr(first, second - first), text);
      assembler.push(bytes.substr(second), text);
      assembler.finish(text);
      ASSERT_EQ(text, expected) << first << " " << second;
    }
  }
}

// What can no longer become a character is not held back.
TEST(Utf8Assembler, HoldsOnlyWhatMayBecomeACharacter) {
  Utf8Assembler assembler;
  std::string text;
  assembler.push("\xF0\x9F", text);
  EXPECT_EQ(text, "");
  assembler.push("\xC3", text);
  EXPECT_EQ(text, "\ufffd");
  assembler.push("\xA9", text);
  EXPECT_EQ(text, "\ufffd\u00e9");
  EXPECT_EQ(assembler.num_held_bytes(), 0u);
}

}  // namespace
}  // namespace onecard::text
