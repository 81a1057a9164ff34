// The chat format against tests/golden/chat: prompts and ids of public goldens, and cases derived
// from the rules by an independent implementation.
#include <gtest/gtest.h>

#include <map>

#include "base/json.h"
#include "support/files.h"
#include "text/chat_encoder.h"
#include "text/chat_json.h"
#include "text/chat_tokens.h"
#include "text/detokenizer.h"
#include "text/python_json.h"
#include "tokenizers.h"

namespace onecard::text {
namespace {

json::Value load(const std::string& name) {
  return json::parse(test::read_file(test::golden_path("chat/" + name)));
}

const std::string& text_of(const json::Value& object, std::string_view key) {
  return object.find(key)->as_string();
}

std::vector<TokenId> ids_of(const json::Value& object) {
  std::vector<TokenId> ids;
  for (const json::Value& id : object.find("ids")->items())
    ids.push_back(static_cast<TokenId>(*id.as_int64()));
  return ids;
}

Prompt prompt_of(const json::Value& vector) {
  return encode_chat(conversation_from_json(*vector.find("request"), {.allow_images = true}));
}

TEST(ChatVectors, Prompts) {
  const json::Value file = load("prompts.json");
  EXPECT_EQ(file.find("cases")->items().size(), 68u);
  for (const json::Value& vector : file.find("cases")->items()) {
    SCOPED_TRACE(text_of(vector, "name"));
    const Prompt prompt = prompt_of(vector);
    EXPECT_EQ(prompt.text, text_of(vector, "prompt"));
    EXPECT_EQ(prompt.thinking, vector.find("thinking")->as_bool());
    if (prompt.thinking) {
      EXPECT_EQ(prompt.effort, vector.find("effort")->as_int64());
    }
  }
}

TEST(ChatVectors, PromptIdsWithTheReleaseVocabulary) {
  ONECARD_RELEASE_TOKENIZER_OR_SKIP(tokenizer);
  int num_checked = 0;
  const json::Value file = load("prompts.json");
  for (const json::Value& vector : file.find("cases")->items()) {
    if (vector.find("ids") == nullptr) continue;
    SCOPED_TRACE(text_of(vector, "name"));
    EXPECT_EQ(encode_ids(prompt_of(vector), tokenizer), ids_of(vector));
    ++num_checked;
  }
  EXPECT_EQ(num_checked, 67);
}

TEST(ChatVectors, PlainAndSpecialTextsWithTheReleaseVocabulary) {
  ONECARD_RELEASE_TOKENIZER_OR_SKIP(tokenizer);
  const json::Value file = load("tokenizer.json");
  int num_checked = 0;
  for (const char* part : {"plain", "special"}) {
    for (const json::Value& vector : file.find(part)->items()) {
      SCOPED_TRACE(text_of(vector, "name"));
      const std::vector<TokenId> ids = tokenizer.encode(text_of(vector, "text"));
      EXPECT_EQ(ids, ids_of(vector));
      std::string bytes;
      for (const TokenId id : ids) bytes += tokenizer.token_bytes(id);
      EXPECT_EQ(bytes, text_of(vector, "text"));
      ++num_checked;
    }
  }
  EXPECT_EQ(num_checked, 76 + 18);
}

TEST(ChatVectors, ByteOrderMarkWithTheReleaseVocabulary) {
  ONECARD_RELEASE_TOKENIZER_OR_SKIP(tokenizer);
  EXPECT_EQ(tokenizer.encode("\ufeffbom"), (std::vector<TokenId>{15251, 68, 316}));
}

TEST(ChatVectors, StreamsWithTheReleaseVocabulary) {
  ONECARD_RELEASE_TOKENIZER_OR_SKIP(tokenizer);
  const json::Value file = load("tokenizer.json");
  EXPECT_EQ(file.find("stream_decode")->items().size(), 6u);
  for (const json::Value& vector : file.find("stream_decode")->items()) {
    SCOPED_TRACE(text_of(vector, "name"));
    Detokenizer detokenizer(tokenizer);
    std::vector<std::string> deltas;
    for (const TokenId id : ids_of(vector)) detokenizer.push(id, deltas.emplace_back());
    detokenizer.finish(deltas.emplace_back());
    std::vector<std::string> expected;
    for (const json::Value& delta : vector.find("deltas")->items())
      expected.push_back(delta.as_string());
    EXPECT_EQ(deltas, expected);
  }
}

// The same streams by their bytes, which need no vocabulary.
TEST(ChatVectors, StreamsOfBytes) {
  const json::Value file = load("tokenizer.json");
  for (const json::Value& vector : file.find("stream_decode")->items()) {
    SCOPED_TRACE(text_of(vector, "name"));
    Utf8Assembler assembler;
    std::vector<std::string> deltas;
    for (const json::Value& hex : vector.find("bytes_hex")->items()) {
      std::string bytes;
      for (size_t i = 0; i < hex.as_string().size(); i += 2)
        bytes += static_cast<char>(std::stoi(hex.as_string().substr(i, 2), nullptr, 16));
      assembler.push(bytes, deltas.emplace_back());
    }
    assembler.finish(deltas.emplace_back());
    for (size_t i = 0; i < deltas.size(); ++i)
      EXPECT_EQ(deltas[i], vector.find("deltas")->items()[i].as_string());
  }
}

TEST(ChatVectors, NamedTokensOfTheReleaseVocabulary) {
  ONECARD_RELEASE_TOKENIZER_OR_SKIP(tokenizer);
  EXPECT_EQ(tokenizer.vocab_size(), 129280);
  const json::Value file = load("special_tokens.json");
  for (const json::Value& token : file.find("tokens")->items()) {
    const std::string& text = text_of(token, "text");
    EXPECT_EQ(tokenizer.added_token(text), token.find("id")->as_int64()) << text;
    const auto id = static_cast<TokenId>(*token.find("id")->as_int64());
    EXPECT_EQ(tokenizer.is_special(id), token.find("special")->as_bool()) << text;
    EXPECT_EQ(tokenizer.token_bytes(id), text);
  }
}

TEST(ChatVectors, ChatTokenTextsAreNamedTokens) {
  const json::Value file = load("special_tokens.json");
  std::map<std::string, int64_t> ids;
  for (const json::Value& token : file.find("tokens")->items())
    ids[text_of(token, "text")] = *token.find("id")->as_int64();
  std::vector<int64_t> chat_ids;
  for (const std::string_view text : kChatTokens) chat_ids.push_back(ids[std::string(text)]);
  EXPECT_EQ(chat_ids,
            (std::vector<int64_t>{0, 1, 128799, 128803, 128804, 128821, 128822, 128825, 128828,
                                  129264, 128829, 128830, 128831, 128832, 128836, 128845}));
}

TEST(ChatVectors, JsonStyle) {
  const json::Value file = load("json_dumps.json");
  for (const json::Value& vector : file.find("cases")->items())
    EXPECT_EQ(python_dumps(json::parse(text_of(vector, "in"))), text_of(vector, "out"))
        << text_of(vector, "in");
}

// What comes out is in the style already.
TEST(ChatVectors, JsonStyleIsIdempotent) {
  const json::Value file = load("json_dumps.json");
  for (const json::Value& vector : file.find("cases")->items())
    EXPECT_EQ(python_dumps(json::parse(text_of(vector, "out"))), text_of(vector, "out"));
}

// The literal texts, as a prompt with everything in it shows them.
TEST(ChatVectors, FixedTexts) {
  const json::Value body = json::parse(R"({
      "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"},
                   {"role": "assistant", "content": "A", "tool_calls": [
                     {"id": "1", "type": "function", "function": {"name": "{NAME}", "arguments": "{\"{KEY}\": \"{VALUE}\"}"}}]},
                   {"role": "tool", "tool_call_id": "1", "content": "{TEXT}"}],
      "tools": [{"type": "function", "function": {"name": "f"}}],
      "response_format": {"type": "json_object"}, "reasoning_effort": 7})");
  const std::string prompt = encode_chat(conversation_from_json(body)).text;
  int num_checked = 0;
  const json::Value file = load("fixed_texts.json");
  for (const json::Value& fixed : file.find("texts")->items()) {
    std::string text = text_of(fixed, "text");
    const auto replace = [&](std::string_view from, std::string_view to) {
      if (const size_t at = text.find(from); at != std::string::npos)
        text.replace(at, from.size(), to);
    };
    replace("{N}", "7");
    replace("{true|false}", "true");
    EXPECT_NE(prompt.find(text), std::string::npos) << text_of(fixed, "name");
    ++num_checked;
  }
  EXPECT_EQ(num_checked, 12);
}

}  // namespace
}  // namespace onecard::text
