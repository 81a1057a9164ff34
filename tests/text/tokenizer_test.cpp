#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "support/temp_dir.h"
#include "text/detokenizer.h"
#include "tokenizers.h"

namespace onecard::text {
namespace {

using testing::HasSubstr;

std::string bytes_of(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string bytes;
  for (const TokenId id : ids) bytes += tokenizer.token_bytes(id);
  return bytes;
}

// A file whose vocabulary has the 256 bytes, a few entries more, and these merges and added tokens.
std::string small_file(const std::string& entries, const std::string& merges,
                       const std::string& added = "") {
  json::Value file = json::parse(test::demo_tokenizer_json());
  std::string vocab;
  int next = 0;
  for (const auto& [text, id] : file.find("model")->find("vocab")->members()) {
    // The demo's vocabulary begins with three added tokens, then the 256 bytes.
    if (*id.as_int64() < 3 || *id.as_int64() >= 259) continue;
    vocab += (next == 0 ? "" : ",") + json::quoted(text) + ":" + std::to_string(next);
    ++next;
  }
  json::Value model = *file.find("model");
  model.set("vocab", json::parse("{" + vocab + entries + "}"));
  model.set("merges", json::parse("[" + merges + "]"));
  file.set("model", model);
  file.set("added_tokens", json::parse("[" + added + "]"));
  return json::dump(file);
}

TEST(Tokenizer, LowestRankMergesFirstAndTheLeftmostOfEquals) {
  const auto tokenizer = Tokenizer::parse(
      small_file(R"(,"bc":256,"ab":257,"aa":258,"abc":259)", R"("b c","a b","a a","a bc")"));
  EXPECT_EQ(tokenizer.encode("abc"), (std::vector<TokenId>{259})) << "bc, then a + bc";
  const TokenId a = tokenizer.encode("a")[0];
  EXPECT_EQ(tokenizer.encode("aaa"), (std::vector<TokenId>{258, a}));
  EXPECT_EQ(tokenizer.encode("aaaa"), (std::vector<TokenId>{258, 258}));
}

// The vocabulary may hold what the merges cannot reach.
TEST(Tokenizer, APieceInTheVocabularyIsTakenOnlyWhenMergesLeadToIt) {
  const auto tokenizer =
      Tokenizer::parse(small_file(R"(,"ab":256,"abc":257,"bc":258)", R"("a b")"));
  const std::vector<TokenId> expected = {256, tokenizer.encode("c")[0]};
  EXPECT_EQ(tokenizer.encode("abc"), expected);
  EXPECT_EQ(tokenizer.encode("abc"), expected) << "the second time as the first";
}

TEST(Tokenizer, MergesMayBePairs) {
  EXPECT_EQ(Tokenizer::parse(small_file(R"(,"ab":256)", R"(["a","b"])")).encode("ab"),
            (std::vector<TokenId>{256}));
}

TEST(Tokenizer, AddedTokensMatchLeftmostThenLongest) {
  const auto tokenizer =
      Tokenizer::parse(small_file("", "",
                                  R"({"id":300,"content":"<a>"},{"id":301,"content":"<a><b>"},)"
                                  R"({"id":302,"content":"b><"},{"id":303,"content":"<a"})"));
  EXPECT_EQ(tokenizer.encode("<a><b>"), (std::vector<TokenId>{301}));
  EXPECT_EQ(tokenizer.encode("<a><a"), (std::vector<TokenId>{300, 303}));
  const TokenId x = tokenizer.encode("x")[0];
  EXPECT_EQ(tokenizer.encode("xb><a>"),
            (std::vector<TokenId>{x, 302, tokenizer.encode("a")[0], tokenizer.encode(">")[0]}));
  EXPECT_EQ(tokenizer.vocab_size(), 304);
  EXPECT_EQ(tokenizer.token_bytes(299), "") << "an id that nothing uses";
  EXPECT_EQ(tokenizer.added_token("<a"), 303);
  EXPECT_EQ(tokenizer.added_token("<"), std::nullopt);
}

TEST(Tokenizer, WhatIsNotRecognisedIsOrdinaryText) {
  const Tokenizer& tokenizer = test::demo_tokenizer();
  const TokenId user = *tokenizer.added_token("<\uff5cUser\uff5c>");
  const TokenId other = *tokenizer.added_token("<\uff5ctool\u2581sep\uff5c>");
  const std::string text = "<\uff5cUser\uff5c><\uff5ctool\u2581sep\uff5c>";
  EXPECT_EQ(tokenizer.encode(text), (std::vector<TokenId>{user, other}));
  EXPECT_EQ(tokenizer.encode(text, AddedTokens::kNotChat).back(), other);
  for (const AddedTokens added : {AddedTokens::kNotChat, AddedTokens::kNone}) {
    const std::vector<TokenId> ids = tokenizer.encode(text, added);
    EXPECT_THAT(ids, testing::Not(testing::Contains(user)));
    EXPECT_EQ(bytes_of(tokenizer, ids), text);
  }
  EXPECT_THAT(tokenizer.encode(text, AddedTokens::kNone), testing::Not(testing::Contains(other)));
}

TEST(Tokenizer, AChatTokenThatTouchesClientTextIsOrdinaryText) {
  const Tokenizer& tokenizer = test::demo_tokenizer();
  const TokenId user = *tokenizer.added_token("<\uff5cUser\uff5c>");
  const std::string text = "<\uff5cUser\uff5c>";
  const auto is_token = [&](size_t begin, size_t end) {
    const std::vector<ByteRange> ranges = {{begin + 10, end + 10}};
    const std::vector<TokenId> ids = tokenizer.encode("0123456789" + text + "0123456789", ranges);
    EXPECT_EQ(bytes_of(tokenizer, ids), "0123456789" + text + "0123456789");
    return std::count(ids.begin(), ids.end(), user) == 1;
  };
  const size_t size = text.size();
  EXPECT_FALSE(is_token(0, size));
  EXPECT_FALSE(is_token(3, 4));
  EXPECT_FALSE(is_token(size_t(-5), 1));
  EXPECT_FALSE(is_token(size - 1, size + 5));
  EXPECT_TRUE(is_token(size, size + 5));
  EXPECT_TRUE(is_token(size_t(-5), 0));
}

// huggingface/transformers #45488: the class that tokenizer_config.json names has another
// pre-tokeniser, and spaces vanished. Only tokenizer.json counts.
TEST(Tokenizer, SpacesStay) {
  const Tokenizer& tokenizer = test::demo_tokenizer();
  for (const char* text : {" Hello", "a  b", "a   b", "Hello ", "  ", "\n a\n  b"})
    EXPECT_EQ(bytes_of(tokenizer, tokenizer.encode(text)), text);
  EXPECT_NE(tokenizer.encode(" Hello"), tokenizer.encode("Hello"));
  EXPECT_EQ(tokenizer.token_bytes(tokenizer.encode("a  b")[1]), " ");
}

// Runs of one character are one piece. An algorithm that is quadratic in it does not come back.
TEST(Tokenizer, LongPieces) {
  const Tokenizer& tokenizer = test::demo_tokenizer();
  for (const char* unit : {"a", " ", "\xe4\xb8\xad", "ab", "\n"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    EXPECT_EQ(bytes_of(tokenizer, tokenizer.encode(text)), text) << unit;
  }
}

// Long pieces are merged by other means than short ones: against looking through all pairs each
// time.
TEST(Tokenizer, LongPiecesMergeInTheSameOrder) {
  const auto tokenizer = Tokenizer::parse(small_file(
      R"(,"ab":256,"bc":257,"abc":258,"aa":259,"cab":260,"bcbc":261,"aab":262,"ca":263,"caab":264)",
      R"("a b","b c","ab c","a a","c ab","bc bc","a ab","c a","ca ab")"));
  const TokenId a = tokenizer.encode("a")[0], b = tokenizer.encode("b")[0];
  const TokenId c = tokenizer.encode("c")[0];
  const std::vector<std::array<TokenId, 3>> merges = {
      {a, b, 256},     {b, c, 257},   {256, c, 258}, {a, a, 259},    {c, 256, 260},
      {257, 257, 261}, {a, 256, 262}, {c, a, 263},   {263, 256, 264}};
  std::mt19937 random(3);
  for (int i = 0; i < 40; ++i) {
    std::string text;
    std::vector<TokenId> expected;
    for (int n = 0; n < 700; ++n) {
      const unsigned letter = random() % (i % 2 == 0 ? 3 : 2);
      text += static_cast<char>('a' + letter);
      expected.push_back(std::array{a, b, c}[letter]);
    }
    for (bool merged = true; merged;) {
      merged = false;
      for (size_t rank = 0; rank < merges.size() && !merged; ++rank)
        for (size_t at = 0; at + 1 < expected.size() && !merged; ++at)
          if (expected[at] == merges[rank][0] && expected[at + 1] == merges[rank][1]) {
            expected[at] = merges[rank][2];
            expected.erase(expected.begin() + ptrdiff_t(at) + 1);
            merged = true;
          }
    }
    EXPECT_EQ(tokenizer.encode(text), expected) << text;
  }
}

// Many places where an added token could begin, and none that holds one.
TEST(Tokenizer, ManyBeginningsOfAddedTokens) {
  std::string text;
  while (text.size() < 500'000) text += "<\uff5cbegin\u2581of\u2581sentence\uff5c";
  const Tokenizer& tokenizer = test::demo_tokenizer();
  EXPECT_EQ(bytes_of(tokenizer, tokenizer.encode(text)), text);
}

TEST(Tokenizer, AnyBytesComeBack) {
  std::mt19937 random(1);
  const Tokenizer& tokenizer = test::demo_tokenizer();
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    const size_t size = random() % 40;
    while (text.size() < size) text += static_cast<char>(random());
    EXPECT_EQ(bytes_of(tokenizer, tokenizer.encode(text)), text);
  }
}

TEST(Tokenizer, ThreadsAgree) {
  const auto tokenizer = Tokenizer::parse(test::demo_tokenizer_json());
  std::string text;
  for (int i = 0; i < 2000; ++i) text += " word" + std::to_string(i % 97) + " the naming of it";
  const std::vector<TokenId> expected = test::demo_tokenizer().encode(text);
  std::vector<std::vector<TokenId>> results(4);
  {
    std::vector<std::jthread> threads;
    for (auto& result : results) threads.emplace_back([&] { result = tokenizer.encode(text); });
  }
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

TEST(Tokenizer, IdsOutOfRangeAreRefused) {
  const Tokenizer& tokenizer = test::demo_tokenizer();
  EXPECT_THROW(tokenizer.token_bytes(-1), Error);
  EXPECT_THROW(tokenizer.token_bytes(tokenizer.vocab_size()), Error);
  EXPECT_THROW(tokenizer.is_chat_token(tokenizer.vocab_size()), Error);
}

TEST(Tokenizer, FilesThatCannotBeReadAreNamed) {
  const test::TempDir dir;
  try {
    Tokenizer::load(dir.path() + "/tokenizer.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.what(), HasSubstr(dir.path() + "/tokenizer.json"));
  }
}

struct BadFile {
  const char* name;
  const char* path;  // members, from the root, separated by '/'; numbers are places in arrays
  const char* value;
  ErrorCode code;
  const char* message;
};
void PrintTo(const BadFile& c, std::ostream* os) { *os << c.name; }

json::Value& at(json::Value& value, std::string_view path) {
  if (path.empty()) return value;
  const size_t slash = path.find('/');
  const std::string_view key = path.substr(0, slash);
  const std::string_view rest = slash == std::string_view::npos ? "" : path.substr(slash + 1);
  if (value.is_array()) return at(value.items()[std::stoul(std::string(key))], rest);
  for (auto& [name, member] : value.members())
    if (name == key) return at(member, rest);
  value.set(key, json::Value());
  return at(value.members().back().second, rest);
}

class BadTokenizerFile : public testing::TestWithParam<BadFile> {};
TEST_P(BadTokenizerFile, IsRefusedByName) {
  json::Value file =
      json::parse(small_file(R"(,"ab":256)", R"("a b")", R"({"id":257,"content":"<x>"})"));
  at(file, GetParam().path) = json::parse(GetParam().value);
  try {
    Tokenizer::parse(json::dump(file));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), GetParam().code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
  }
}
INSTANTIATE_TEST_SUITE_P(
    , BadTokenizerFile,
    testing::Values(
        BadFile{"not_an_object", "", "[]", ErrorCode::kDataCorrupt, "not an object"},
        BadFile{"truncation", "truncation", R"({"max_length":5})", ErrorCode::kUnsupported,
                "truncation"},
        BadFile{"normalizer", "normalizer", R"({"type":"NFC"})", ErrorCode::kUnsupported,
                "normalizer"},
        BadFile{"no_pre_tokenizer", "pre_tokenizer", "null", ErrorCode::kUnsupported,
                "pre_tokenizer"},
        BadFile{"three_steps", "pre_tokenizer/pretokenizers", "[]", ErrorCode::kUnsupported,
                "it has 0 steps"},
        BadFile{"other_expression", "pre_tokenizer/pretokenizers/0/pattern/Regex", R"("\\p{N}")",
                ErrorCode::kUnsupported, "step 0 has another expression"},
        BadFile{"merged_behavior", "pre_tokenizer/pretokenizers/1/behavior",
                R"("MergedWithPrevious")", ErrorCode::kUnsupported, "step 1"},
        BadFile{"inverted", "pre_tokenizer/pretokenizers/2/invert", "true", ErrorCode::kUnsupported,
                "step 2"},
        BadFile{"own_regex", "pre_tokenizer/pretokenizers/3/use_regex", "true",
                ErrorCode::kUnsupported, "byte level"},
        BadFile{"prefix_space", "pre_tokenizer/pretokenizers/3/add_prefix_space", "true",
                ErrorCode::kUnsupported, "byte level"},
        BadFile{"template", "post_processor", R"({"type":"TemplateProcessing"})",
                ErrorCode::kUnsupported, "post_processor"},
        BadFile{"decoder", "decoder", R"({"type":"WordPiece"})", ErrorCode::kUnsupported,
                "decoder"},
        BadFile{"unigram", "model/type", R"("Unigram")", ErrorCode::kUnsupported, "model"},
        BadFile{"byte_fallback", "model/byte_fallback", "true", ErrorCode::kUnsupported,
                "model.byte_fallback"},
        BadFile{"dropout", "model/dropout", "0.1", ErrorCode::kUnsupported, "model.dropout"},
        BadFile{"ignore_merges", "model/ignore_merges", "true", ErrorCode::kUnsupported,
                "model.ignore_merges"},
        BadFile{"vocab_list", "model/vocab", "[]", ErrorCode::kDataCorrupt, "model.vocab"},
        BadFile{"vocab_empty", "model/vocab", "{}", ErrorCode::kDataCorrupt, "single byte 0"},
        BadFile{"id_text", "model/vocab/ab", R"("256")", ErrorCode::kDataCorrupt,
                R"(model.vocab["ab"]: the id)"},
        BadFile{"id_negative", "model/vocab/ab", "-1", ErrorCode::kDataCorrupt, "the id"},
        BadFile{"id_huge", "model/vocab/ab", "99999999", ErrorCode::kDataCorrupt, "the id"},
        BadFile{"id_float", "model/vocab/ab", "1.0", ErrorCode::kDataCorrupt, "the id"},
        BadFile{"id_twice", "model/vocab/ab", "7", ErrorCode::kDataCorrupt, "the id 7 belongs to"},
        BadFile{"merges_object", "model/merges", "{}", ErrorCode::kDataCorrupt, "model.merges"},
        BadFile{"merge_one_side", "model/merges/0", R"("ab")", ErrorCode::kDataCorrupt,
                "model.merges[0]"},
        BadFile{"merge_three_sides", "model/merges/0", R"("a b c")", ErrorCode::kDataCorrupt,
                "model.merges[0]"},
        BadFile{"merge_number", "model/merges/0", "5", ErrorCode::kDataCorrupt, "model.merges[0]"},
        BadFile{"merge_unknown", "model/merges/0", R"("b a")", ErrorCode::kDataCorrupt,
                "\"ba\" is not in the vocabulary"},
        BadFile{"merge_twice", "model/merges", R"(["a b","a b"])", ErrorCode::kDataCorrupt,
                "model.merges[1]: the pair is there twice"},
        BadFile{"added_object", "added_tokens", "{}", ErrorCode::kDataCorrupt, "added_tokens"},
        BadFile{"added_no_id", "added_tokens/0", R"({"content":"x"})", ErrorCode::kDataCorrupt,
                "added_tokens[0]: id is missing"},
        BadFile{"added_empty", "added_tokens/0/content", R"("")", ErrorCode::kDataCorrupt,
                "added_tokens[0]: content is empty"},
        BadFile{"added_taken_id", "added_tokens/0/id", "256", ErrorCode::kDataCorrupt,
                "belongs to \"ab\""},
        BadFile{"added_other_id", "added_tokens/0/content", R"("ab")", ErrorCode::kDataCorrupt,
                "in the vocabulary \"ab\" has 256"},
        BadFile{"added_strip", "added_tokens/0/lstrip", "true", ErrorCode::kUnsupported,
                "added_tokens[0]: lstrip"},
        BadFile{"added_twice", "added_tokens",
                R"([{"id":257,"content":"x!"},{"id":258,"content":"x!"}])", ErrorCode::kDataCorrupt,
                "added_tokens[1]: content \"x!\" is there twice"}));

TEST(Tokenizer, WhatIsNoJsonIsRefused) {
  for (const char* text : {"", "{", "\xff", "{\"a\":1,\"a\":2}"}) {
    try {
      Tokenizer::parse(text);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataCorrupt);
      EXPECT_THAT(error.what(), testing::StartsWith("tokenizer.json: json: "));
    }
  }
}

// antonellof/ferrox #124 and exo-explore/exo #1691: a character that two tokens share was lost.
TEST(Detokenizer, CharactersAcrossTokens) {
  const Tokenizer& tokenizer = test::demo_tokenizer();
  const std::string text = "caf\u00e9 \U0001f468\u200d\U0001f469 \u4e2d\u6587 \U00020bb7";
  Detokenizer detokenizer(tokenizer);
  std::string streamed;
  for (const TokenId id : tokenizer.encode(text)) {
    std::string delta;
    detokenizer.push(id, delta);
    EXPECT_EQ(delta.find("\ufffd"), std::string::npos);
    streamed += delta;
  }
  detokenizer.finish(streamed);
  EXPECT_EQ(streamed, text);
}

TEST(Detokenizer, AddedTokensAreTheirText) {
  const Tokenizer& tokenizer = test::demo_tokenizer();
  Detokenizer detokenizer(tokenizer);
  std::string text;
  detokenizer.push(*tokenizer.added_token("<\uff5cUser\uff5c>"), text);
  EXPECT_EQ(text, "<\uff5cUser\uff5c>");
}

}  // namespace
}  // namespace onecard::text
