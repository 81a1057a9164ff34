// onecard render and onecard engram-map, run as programs.
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
