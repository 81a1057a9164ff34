// onecard logits, run as a program: on checkpoints it has not seen, against the numpy oracle's
// goldens (tests/golden/model).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "make_tiny_model/tiny_model.h"
#include "model/config.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace onecard::cli {
namespace {

using test::ids;
using test::member;
using testing::HasSubstr;
using Words = std::vector<std::string>;

std::string joined(const std::vector<int32_t>& numbers) {
  std::string text;
  for (const int32_t number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

// A golden and its checkpoint, written to a directory.
class LogitsCommand : public testing::TestWithParam<const char*> {
 protected:
  void open(const std::string& name) {
    golden_ = test::load_golden("model/" + name + ".json");
    tokens_ = ids(member(golden_, "tokens"));
    positions_ = ids(member(golden_, "positions"));
    const std::string config = "{\"text_config\":" + json::dump(member(golden_, "config")) + "}";
    tiny::write_checkpoint(dir_.path(), model::parse_model_config(config, "config.json"));
  }

  test::ProgramResult run(const Words& more) const {
    Words words{"logits", "--model", dir_.path(), "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return test::run_onecard(words);
  }

  // Runs the golden's prompt and decode tokens; what comes out has the promised members.
  json::Value logits(Words more) const {
    more.insert(more.end(), {"--tokens", joined(tokens_), "--decode",
                             joined(ids(member(golden_, "decode_tokens")))});
    const test::ProgramResult result = run(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    // One line an event: what the model needs, and nothing else.
    EXPECT_THAT(result.err, testing::MatchesRegex("ts=[^\n]* level=info event=plan [^\n]*\n"));
    json::Value answer = json::parse(result.out);
    EXPECT_EQ(answer.members().size(), 3u);
    for (size_t i = 0; i < answer.members().size(); ++i)
      EXPECT_EQ(answer.members()[i].first, (Words{"positions", "logits", "decode_logits"}[i]));
    return answer;
  }

  void expect_rows(const json::Value& got, const json::Value& want, const char* what) const {
    ASSERT_EQ(got.items().size(), want.items().size()) << what;
    for (size_t i = 0; i < want.items().size(); ++i)
      EXPECT_LE(test::max_abs_error(test::row(got.items()[i]), test::row(want.items()[i])), 1e-4)
          << what << " " << i;
  }

  test::TempDir dir_;
  json::Value golden_;
  std::vector<int32_t> tokens_, positions_;
};

TEST_P(LogitsCommand, AgreesWithTheOracleInEveryModeAndChunking) {
  open(GetParam());
  const auto num_tokens = int32_t(tokens_.size());
  const json::Value& want = member(golden_, "logits");
  const json::Value last = json::Value::array({want.items().back()});
  const json::Value bounded = json::Value::array({member(golden_, "bounded_logits")});
  for (const Words& isa : {Words{}, Words{"--isa", "plain", "--threads", "1"}}) {
    for (const Words& chunks :
         {Words{}, Words{"--chunks", joined({7, 1, num_tokens - 9, 1})},
          Words{"--chunks", joined(std::vector<int32_t>(size_t(num_tokens), 1))}}) {
      Words common = isa;
      common.insert(common.end(), chunks.begin(), chunks.end());
      const auto with = [&](const Words& more) {
        Words words = common;
        words.insert(words.end(), more.begin(), more.end());
        return logits(words);
      };
      // Positions ask for a full prefill; without them the last one comes from an exact one.
      json::Value answer = with({"--positions", joined(positions_)});
      EXPECT_EQ(ids(member(answer, "positions")), positions_);
      expect_rows(member(answer, "logits"), want, "listed");
      expect_rows(member(answer, "decode_logits"), member(golden_, "decode_logits"), "decode");

      answer = with({"--prefill", "full", "--positions", "all"});
      ASSERT_EQ(member(answer, "positions").items().size(), tokens_.size());
      const std::vector<json::Value>& all = member(answer, "logits").items();
      ASSERT_EQ(all.size(), tokens_.size());
      std::vector<json::Value> asked;
      for (const int32_t position : positions_) asked.push_back(all[size_t(position)]);
      expect_rows(json::Value::array(asked), want, "all");

      for (const Words& mode : {Words{}, Words{"--prefill", "exact"},
                                Words{"--prefill", "full", "--positions", "last"}}) {
        answer = with(mode);
        EXPECT_EQ(ids(member(answer, "positions")), std::vector<int32_t>{num_tokens - 1});
        expect_rows(member(answer, "logits"), last, "last");
        expect_rows(member(answer, "decode_logits"), member(golden_, "decode_logits"), "decode");
      }

      answer = with({"--prefill", "bounded", "--positions", "last"});
      expect_rows(member(answer, "logits"), bounded, "bounded");
      expect_rows(member(answer, "decode_logits"), member(golden_, "bounded_decode_logits"),
                  "decode after bounded");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, LogitsCommand, testing::Values("quantised", "three_engram_heads"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(LogitsCommand, RefusesWhatItCannotAnswer) {
  open("quantised");  // 24 tokens, 64 ids
  struct Case {
    Words words;
    const char* message;
  };
  const std::string prompt = joined(tokens_);
  for (const Case& c : std::vector<Case>{
           {{"--tokens", prompt, "--prefill", "exact", "--positions", "all"}, "--positions"},
           {{"--tokens", prompt, "--prefill", "bounded", "--positions", "all"}, "--positions"},
           {{"--tokens", prompt, "--prefill", "exact", "--positions", "0,23"}, "--positions"},
           {{"--tokens", prompt, "--prefill", "bounded", "--positions", "23"}, "--positions"},
           {{"--tokens", prompt, "--prefill", "fast"}, "--prefill"},
           {{"--tokens", prompt, "--positions", "24"}, "--positions: 24"},
           {{"--tokens", prompt, "--positions", "first"}, "--positions"},
           {{"--tokens", prompt, "--chunks", "7,1,24"}, "--chunks"},
           {{"--tokens", prompt, "--chunks", "0,24"}, "--chunks"},
           {{"--tokens", prompt, "--chunks", "25,-1"}, "--chunks"},
           {{"--tokens", ""}, "--tokens"},
           {{"--tokens", "1,two"}, "--tokens"},
           {{"--tokens", "1,,2"}, "--tokens"},
           {{"--tokens", "-1"}, "--tokens"},
           {{"--tokens", "99999999999"}, "--tokens"},
           {{"--tokens", "1,64"}, "token id 64"},
           {{"--tokens", "1", "--decode", "64"}, "token id 64"},
           {{"--tokens", "1", "--decode", "x"}, "--decode"},
           {{"--tokens", "1", "--isa", "sse"}, "--isa"},
           {{"--tokens", "1", "--threads", "-1"}, "--threads"},
           {{"--tokens", "1", "--tokens-file", dir_.file("config.json")}, "--tokens"},
           {{"--tokens-file", dir_.file("nothing")}, "nothing"},
           {{"--tokens", "1", "--nonsense"}, "--nonsense"},
           {{}, "--tokens"}}) {
    const test::ProgramResult result = run(c.words);
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(c.words) << result.err;
    EXPECT_EQ(result.out, "") << testing::PrintToString(c.words);
    EXPECT_THAT(result.err, HasSubstr(c.message)) << testing::PrintToString(c.words);
  }
  const test::ProgramResult nowhere =
      test::run_onecard({"logits", "--model", dir_.file("nowhere"), "--tokens", "1"});
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr(dir_.file("nowhere")));
}

TEST_F(LogitsCommand, RefusesADamagedCheckpoint) {
  open("short");
  std::filesystem::resize_file(dir_.file("model.safetensors"),
                               std::filesystem::file_size(dir_.file("model.safetensors")) - 1);
  const test::ProgramResult result = run({"--tokens", "1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, testing::AllOf(HasSubstr(dir_.file("model.safetensors")),
                                         HasSubstr("is cut off"), HasSubstr("to repair")));
}

}  // namespace
}  // namespace onecard::cli
