// onecard render, onecard parse and onecard engram-map, run as programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "support/files.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace onecard::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A model's directory with the demo's tokenizer and the given config.json.
class TextCommands : public testing::Test {
 protected:
  TextCommands() {
    write("tokenizer.json", test::read_file(test::golden_path("text/demo_tokenizer.json")));
  }
  void write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_.path() + "/" + name, std::ios::binary) << bytes;
  }
  test::TempDir dir_;
};

TEST_F(TextCommands, RenderPrintsPromptAndIds) {
  const auto result = test::run_onecard({"render", "--model", dir_.path(), "--json"},
                                        R"({"messages":[{"role":"user","content":"Hello"}],
                                            "reasoning_effort":"none"})");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const json::Value answer = json::parse(result.out);
  EXPECT_EQ(
      answer.find("prompt")->as_string(),
      "<\uff5cbegin\u2581of\u2581sentence\uff5c><\uff5cUser\uff5c>Hello<\uff5cAssistant\uff5c>"
      "</think>");
  std::vector<int64_t> ids;
  for (const json::Value& id : answer.find("ids")->items()) ids.push_back(*id.as_int64());
  EXPECT_EQ(ids, (std::vector<int64_t>{0, 5065, 2406, 5066, 5084}));
}

TEST_F(TextCommands, RenderNamesWhatIsWrong) {
  for (const auto& [body, message] : std::vector<std::pair<std::string, std::string>>{
           {"{", "onecard: json: byte "},
           {R"({"messages":[{"role":"robot"}]})", "onecard: messages[0].role: "},
           {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":"u"}]}]})",
            "onecard: messages[0].content[0]: images are not supported"}}) {
    const auto result = test::run_onecard({"render", "--model", dir_.path(), "--json"}, body);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, StartsWith(message));
  }
}

TEST_F(TextCommands, RenderNamesTheFileThatIsMissing) {
  const auto result = test::run_onecard({"render", "--model", dir_.path() + "/no", "--json"},
                                        R"({"messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("/no/tokenizer.json"));
}

// A model's reasoning, answer and call, as the tool markup of the chat format writes it.
const char* const kOutput =
    "Hm.</think>Let me look.\n\n<\uff5cDSML\uff5c calls>\n<\uff5cDSML\uff5c invoke name=\"now\">\n"
    "<\uff5cDSML\uff5c parameter name=\"zone\" string=\"true\">UTC</\uff5cDSML\uff5c parameter>\n"
    "</\uff5cDSML\uff5c invoke>\n</\uff5cDSML\uff5c calls>";

TEST_F(TextCommands, ParsePrintsTheMessage) {
  const auto plain = test::run_onecard({"parse"}, "Hm.\n</think>\n\nParis.");
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(plain.out, "reasoning: Hm.\ncontent: Paris.\nfinish_reason: stop\n");
  const auto content = test::run_onecard({"parse", "--start", "content"}, "Paris.");
  EXPECT_EQ(content.out, "content: Paris.\nfinish_reason: stop\n");
}

TEST_F(TextCommands, ParseAsJsonKnowsTheRequestsTools) {
  json::Value body =
      json::parse(R"({"tools": [{"type": "function", "function": {"name": "now"}}]})");
  body.set("raw", json::Value::string(kOutput));
  const auto result = test::run_onecard({"parse", "--json"}, json::dump(body));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const json::Value message = json::parse(result.out);
  EXPECT_EQ(message.find("role")->as_string(), "assistant");
  EXPECT_EQ(message.find("reasoning")->as_string(), "Hm.");
  EXPECT_EQ(message.find("content")->as_string(), "Let me look.");
  EXPECT_EQ(message.find("finish_reason")->as_string(), "tool_calls");
  const json::Value* function = message.find("tool_calls")->items().at(0).find("function");
  EXPECT_EQ(function->find("name")->as_string(), "now");
  EXPECT_EQ(function->find("arguments")->as_string(), R"({"zone": "UTC"})");
  // Without tools in the request, markup is text.
  const auto text = test::run_onecard({"parse", "--json"}, kOutput);
  EXPECT_EQ(json::parse(text.out).find("tool_calls"), nullptr);
  EXPECT_THAT(json::parse(text.out).find("content")->as_string(), HasSubstr("invoke name"));
}

TEST_F(TextCommands, ParseNamesWhatIsWrong) {
  for (const auto& [input, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"raw": "x", "start": "middle"})", "onecard: parse: start: "},
           {R"({"raw": "x", "end": "soon"})", "onecard: parse: end: "},
           {R"({"raw": "x", "tool_choice": "maybe"})", "onecard: parse: tool_choice: "}}) {
    const auto result = test::run_onecard({"parse"}, input);
    EXPECT_EQ(result.exit_code, 2) << input;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, StartsWith(message));
  }
}

TEST_F(TextCommands, EngramMapIsWrittenNextToTheTokenizer) {
  write("config.json", test::read_file(test::golden_path("text/demo_config.json")));
  const auto result = test::run_onecard({"engram-map", "--model", dir_.path()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string bytes = test::read_file(dir_.path() + "/engram_token_map.i32");
  uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  const json::Value golden = json::parse(test::read_file(test::golden_path("text/encodings.json")));
  EXPECT_EQ(hash, std::stoull(golden.find("demo")->find("engram")->find("fnv1a64")->as_string(),
                              nullptr, 16));
}

TEST_F(TextCommands, EngramMapOfAnotherModelIsNotWritten) {
  json::Value config = json::parse(test::read_file(test::golden_path("text/demo_config.json")));
  json::Value text_config = *config.find("text_config");
  text_config.set("engram_compressed_vocab_size", json::Value::integer(4005));
  config.set("text_config", text_config);
  write("config.json", json::dump(config));
  const auto result = test::run_onecard({"engram-map", "--model", dir_.path()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("4004 compressed ids"));
  EXPECT_FALSE(std::ifstream(dir_.path() + "/engram_token_map.i32").good());
}

}  // namespace
}  // namespace onecard::cli
