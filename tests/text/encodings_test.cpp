// Against Hugging Face `tokenizers`: tests/golden/text/encodings.json, by
// tools/oracle/text_goldens.py.
#include <gtest/gtest.h>

#include <string>

#include "base/json.h"
#include "support/files.h"
#include "text/engram_map.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "tokenizers.h"

namespace onecard::text {
namespace {

const json::Value& golden() {
  static const auto file = json::parse(test::read_file(test::golden_path("text/encodings.json")));
  return file;
}

std::vector<int32_t> ids_of(const json::Value& list) {
  std::vector<int32_t> ids;
  for (const json::Value& id : list.items()) ids.push_back(static_cast<int32_t>(*id.as_int64()));
  return ids;
}

void expect_same_ids(const Tokenizer& tokenizer, const char* name) {
  const auto& texts = golden().find("texts")->items();
  const auto& expected = golden().find(name)->find("ids")->items();
  ASSERT_GE(texts.size(), 500u);
  ASSERT_EQ(texts.size(), expected.size());
  for (size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(tokenizer.encode(texts[i].as_string()), ids_of(expected[i])) << json::dump(texts[i]);
}

void expect_same_map(const Tokenizer& tokenizer, const char* name) {
  const json::Value& expected = *golden().find(name)->find("engram");
  const EngramMap map = build_engram_map(tokenizer);
  EXPECT_EQ(map.compressed_ids.size(), static_cast<size_t>(*expected.find("num_ids")->as_int64()));
  EXPECT_EQ(map.num_compressed_ids, *expected.find("num_compressed_ids")->as_int64());
  // FNV-1a over the map as little-endian int32.
  uint64_t hash = 0xCBF29CE484222325;
  for (const int32_t id : map.compressed_ids)
    for (int shift = 0; shift < 32; shift += 8)
      hash = (hash ^ (id >> shift & 0xFF)) * 0x100000001B3;
  EXPECT_EQ(hash, std::stoull(expected.find("fnv1a64")->as_string(), nullptr, 16));
}

// Pieces, not ids: BPE hides most wrong borders, because no token crosses them anyway.
TEST(Encodings, PiecesOfOddTexts) {
  const auto& texts = golden().find("texts")->items();
  const auto& expected = golden().find("piece_bytes")->items();
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string& text = texts[i].as_string();
    std::vector<int32_t> sizes;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = piece_end(text, begin);
      sizes.push_back(static_cast<int32_t>(end - begin));
      begin = end;
    }
    EXPECT_EQ(sizes, ids_of(expected[i])) << json::dump(texts[i]);
  }
}

TEST(Encodings, OddTextsWithTheDemoVocabulary) { expect_same_ids(test::demo_tokenizer(), "demo"); }

TEST(Encodings, OddTextsWithTheReleaseVocabulary) {
  ONECARD_RELEASE_TOKENIZER_OR_SKIP(tokenizer);
  expect_same_ids(tokenizer, "release");
}

TEST(EngramMap, OfTheDemoVocabulary) { expect_same_map(test::demo_tokenizer(), "demo"); }

TEST(EngramMap, OfTheReleaseVocabulary) {
  ONECARD_RELEASE_TOKENIZER_OR_SKIP(tokenizer);
  expect_same_map(tokenizer, "release");
}

}  // namespace
}  // namespace onecard::text
