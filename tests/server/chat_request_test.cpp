// Validation of chat requests, against tests/golden/chat/request_errors.json and by hand.
#include "server/openai/chat_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "base/error.h"
#include "server/api_error.h"
#include "support/files.h"
#include "text/chat_encoder.h"

namespace onecard::server::openai {
namespace {

using testing::HasSubstr;

// The status that the endpoint answers, and the error; 200 when nothing is wrong.
struct Verdict {
  int status = 200;
  std::string message;
  std::string param;
};

Verdict judge(const std::string& body) {
  try {
    const ChatRequest request = parse_chat_request(body, {});
    text::encode_chat(request.conversation);
    return {};
  } catch (const Error& error) {
    const ApiError api = ApiError::from(error);
    return {api.status(), api.what(), api.param()};
  }
}

std::string with(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"x"}],)" + fields + "}";
}

TEST(ChatRequest, RefusesEveryVector) {
  const json::Value file =
      json::parse(test::read_file(test::golden_path("chat/request_errors.json")));
  // Decided where the served names and the tokenizer are known.
  const std::set<std::string> elsewhere = {"unknown_model", "too_long"};
  // The vector's note: many clients send it; lenient servers treat it as none. Ours is lenient.
  const std::set<std::string> tolerated = {"tool_choice_without_tools"};
  int num_refused = 0;
  for (const json::Value& vector : file.find("cases")->items()) {
    const std::string name = vector.find("name")->as_string();
    if (elsewhere.count(name) > 0) continue;
    const Verdict verdict = judge(json::dump(*vector.find("request")));
    if (tolerated.count(name) > 0) {
      EXPECT_EQ(verdict.status, 200) << name;
      continue;
    }
    // What is known and not supported is 501; both are refusals that name the field.
    EXPECT_TRUE(verdict.status == *vector.find("status")->as_int64() || verdict.status == 501)
        << name << ": " << verdict.status << " " << verdict.message;
    EXPECT_NE(verdict.param, "") << name << ": " << verdict.message;
    ++num_refused;
  }
  EXPECT_EQ(num_refused, int(file.find("cases")->items().size()) - 3);
}

struct Case {
  const char* fields;
  const char* param;
};
void PrintTo(const Case& c, std::ostream* os) { *os << c.fields; }
class ChatRequestRefuses : public testing::TestWithParam<Case> {};

TEST_P(ChatRequestRefuses, NamingTheField) {
  const Verdict verdict = judge(with(GetParam().fields));
  EXPECT_GE(verdict.status, 400);
  EXPECT_EQ(verdict.param, GetParam().param) << verdict.message;
}

INSTANTIATE_TEST_SUITE_P(
    , ChatRequestRefuses,
    testing::Values(
        Case{R"("temperature":1e999)", ""}, Case{R"("temperature":[1])", "temperature"},
        Case{R"("top_p":-1)", "top_p"}, Case{R"("top_k":1.5)", "top_k"},
        Case{R"("top_k":18446744073709551616)", "top_k"}, Case{R"("n":99999999999999999999)", "n"},
        Case{R"("n":129)", "n"}, Case{R"("seed":"a")", "seed"},
        Case{R"("seed":9223372036854775808)", "seed"},
        Case{R"("max_tokens":-9223372036854775809)", "max_tokens"},
        Case{R"("max_tokens":1.0)", "max_tokens"},
        Case{R"("max_completion_tokens":0)", "max_completion_tokens"},
        Case{R"("max_tokens":5,"min_tokens":6)", "min_tokens"}, Case{R"("stop":7)", "stop"},
        Case{R"("stop":["a",7])", "stop[1]"}, Case{R"("stop_token_ids":[-1])", "stop_token_ids[0]"},
        Case{R"("stop_token_ids":[2147483648])", "stop_token_ids[0]"},
        Case{R"("logit_bias":{"a":1})", "logit_bias"},
        Case{R"("logit_bias":{"1":101})", "logit_bias"},
        Case{R"("logit_bias":{"1":"x"})", "logit_bias"},
        Case{R"("allowed_token_ids":[])", "allowed_token_ids"},
        Case{R"("bad_words":[""])", "bad_words"}, Case{R"("stream":"yes")", "stream"},
        Case{R"("stream":true,"stream_options":{"include_usage":1})",
             "stream_options.include_usage"},
        Case{R"("logprobs":5)", "logprobs"}, Case{R"("use_beam_search":true)", "use_beam_search"},
        Case{R"("prompt_logprobs":21)", "prompt_logprobs"},
        Case{R"("prompt_logprobs":1,"stream":true)", "prompt_logprobs"},
        Case{R"("best_of":2)", "best_of"}, Case{R"("guided_regex":"a*")", "guided_regex"},
        Case{R"("echo":true)", "echo"}, Case{R"("parallel_tool_calls":0)", "parallel_tool_calls"},
        Case{R"("thinking_token_budget":-1)", "thinking_token_budget"}));

TEST(ChatRequest, BodiesThatAreNoRequestAreRefused) {
  for (const std::string body :
       {"", "{", "[]", "null", "7", "\"x\"", "{\"messages\":{}}", "\xff\xfe", "{\"messages\":[1]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"\xc3\x28\"}]}"})
    EXPECT_EQ(judge(body).status, 400) << body;
  EXPECT_EQ(judge(std::string(100000, '[')).status, 400);
}

TEST(ChatRequest, DefaultsAreFilledIn) {
  const ChatRequest request =
      parse_chat_request(with(R"("unknown_field":{"a":1},"stop":null)"), {});
  const GenerationFields& fields = request.generation;
  EXPECT_EQ(fields.sampling.temperature, 1);
  EXPECT_EQ(fields.sampling.top_p, 1);
  EXPECT_EQ(fields.sampling.top_k, 0);
  EXPECT_FALSE(fields.sampling.seed);
  EXPECT_FALSE(fields.max_tokens);
  EXPECT_EQ(fields.n, 1);
  EXPECT_FALSE(fields.stream);
  EXPECT_TRUE(request.parallel_tool_calls);
  EXPECT_TRUE(request.include_reasoning);
  EXPECT_TRUE(request.conversation.thinking);
}

TEST(ChatRequest, ReadsWhatIsThere) {
  const ChatRequest request = parse_chat_request(
      with(R"("model":"m","temperature":0,"top_k":-1,"seed":-3,"max_tokens":7,)"
           R"("max_completion_tokens":9,"stop":"END","logit_bias":{"5":-100,"6":1.5},)"
           R"("stream":true,"stream_options":{"include_usage":true},"logprobs":true,)"
           R"("top_logprobs":4,"cache_salt":"s","thinking_token_budget":11)"),
      {});
  const GenerationFields& fields = request.generation;
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(fields.sampling.temperature, 0);
  EXPECT_EQ(fields.sampling.top_k, 0);
  EXPECT_EQ(fields.sampling.seed, uint64_t(-3));
  EXPECT_EQ(fields.max_tokens, 9);  // the newer name wins
  EXPECT_THAT(fields.stop, testing::ElementsAre("END"));
  EXPECT_THAT(fields.sampling.logit_bias,
              testing::ElementsAre(testing::Pair(5, -100.f), testing::Pair(6, 1.5f)));
  EXPECT_TRUE(fields.stream && fields.include_usage);
  EXPECT_EQ(request.num_logprobs, 4);
  EXPECT_EQ(fields.cache_salt, "s");
  EXPECT_EQ(request.thinking_token_budget, 11);
}

TEST(ChatRequest, ALimitThatNothingReachesIsNoError) {
  for (const char* number :
       {"2147483648", "9223372036854775807", "9223372036854775808", "99999999999999999999999999"}) {
    const ChatRequest request =
        parse_chat_request(with(std::string("\"max_tokens\":") + number), {});
    EXPECT_GE(request.generation.max_tokens, 2147483648) << number;
  }
}

}  // namespace
}  // namespace onecard::server::openai
