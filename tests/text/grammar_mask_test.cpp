// Token masks against following each token byte by byte, where bounds are near.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/chat_tokens.h"
#include "text/grammar/grammar.h"

namespace onecard::text {
namespace {

// Places that differ only in how far a bound is share what was computed about tokens. Here tokens
// reach bounds from everywhere: words of up to 40 letters, some of which end or go on behind the
// string.
TEST(GrammarMask, NearBoundsIsWhatFollowingEachTokenSays) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 128; ++byte) tokens.emplace_back(1, char(byte));
  std::mt19937 random(12);
  for (size_t length = 2; length <= 40; ++length) {
    for (const char* middle : {"", ".", "-", "@", "\\u0061", "\""}) {
      std::string token;
      while (token.size() < length) token += char('a' + random() % 26);
      if (*middle != 0) token.insert(random() % (length + 1), middle);
      tokens.push_back(token);
    }
    const std::string word(length, 'x');
    for (const char* end : {"\"}", "\" }", "</", ".b\"}"}) tokens.push_back(word + end);
  }
  const auto end_id = int32_t(tokens.size());
  tokens.emplace_back(kEos);
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  const auto trie = std::make_shared<const TokenTrie>(views, std::span(&end_id, 1));

  for (const char* limits :
       {R"("format": "hostname")", R"("format": "email", "maxLength": 90)",
        R"("pattern": "^[a-z]{1,70}$", "minLength": 30)",
        R"("pattern": "^[a-z]{3,30}([-.][a-z]{1,30})*$", "maxLength": 75)",
        R"("pattern": "^([a-z]{50}|[a-m]*)$")", R"("minLength": 20, "maxLength": 50)"}) {
    const std::string schema = R"({"type": "object", "properties": {"a": {"type": "string", )" +
                               std::string(limits) +
                               R"(}}, "required": ["a"], "additionalProperties": false})";
    GrammarRequest format;
    format.response_format.kind = ResponseFormat::Kind::kJsonSchema;
    format.response_format.schema = json::parse(schema);
    GrammarRequest tool;
    tool.tools.push_back({"f", "", json::parse(schema), true});
    tool.tool_choice.kind = ToolChoice::Kind::kRequired;
    tool.start = ParserStart::kCalls;
    const std::string open = std::string(kDsmlOpen);
    const std::vector<std::pair<GrammarRequest, std::string>> beginnings = {
        {format, "{\"a\": \""},
        {tool, open + " invoke name=\"f\">\n" + open + " parameter name=\"a\" string=\"true\">"}};
    for (const auto& [request, begin] : beginnings) {
      SCOPED_TRACE(begin + limits);
      const auto grammar = Grammar::compile(request);
      GrammarState fresh(grammar, trie);
      for (int text = 0; text < 3; ++text) {
        GrammarState state = fresh;  // with what is known from the texts before
        ASSERT_TRUE(state.accept(begin));
        for (int step = 0; step < 50; ++step) {
          std::vector<uint64_t> mask(trie->mask_words(), ~uint64_t{0});
          state.fill_mask(mask);
          std::vector<int32_t> short_words;
          for (int32_t id = 0; id < trie->vocab_size(); ++id) {
            GrammarState copy = state;
            const bool allowed = (mask[size_t(id) / 64] >> (id % 64) & 1) != 0;
            ASSERT_EQ(allowed, copy.accept_token(id))
                << "'" << tokens[size_t(id)] << "' in step " << step;
            if (allowed && tokens[size_t(id)].size() < 6) short_words.push_back(id);
          }
          if (short_words.empty()) break;
          const int32_t id = short_words[random() % short_words.size()];
          ASSERT_TRUE(state.accept_token(id));
          if (id == end_id) break;
        }
      }
    }
  }
}

}  // namespace
}  // namespace onecard::text
