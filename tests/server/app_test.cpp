// The endpoints over a real engine with a scripted model and the demo model's tokenizer; no
// sockets.
#include "server/app.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <thread>

#include "base/json.h"
#include "server/script_runner.h"
#include "support/files.h"
#include "text/chat_tokens.h"

namespace onecard::server {
namespace {

using json::Value;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const text::Tokenizer& tokenizer() {
  static const auto instance = text::Tokenizer::load(test::golden_path("text/demo_tokenizer.json"));
  return instance;
}

// What an exchange has written.
struct Answer final : http::ResponseWriter {
  void send(http::Response whole) override { response = std::move(whole); }
  void start_stream(http::Response head) override { response = std::move(head); }
  void write(std::string_view bytes) override { response.body += bytes; }
  void end_stream() override { ended = true; }

  Value json() const { return json::parse(response.body); }
  /// The payloads of the data lines.
  std::vector<std::string> data() const {
    std::vector<std::string> payloads;
    for (size_t at = 0; (at = response.body.find("data: ", at)) != std::string::npos;) {
      const size_t end = response.body.find("\n\n", at);
      payloads.push_back(response.body.substr(at + 6, end - at - 6));
      at = end;
    }
    return payloads;
  }
  std::string error(const char* member) const {
    const Value body = json();
    const Value* error = body.find("error");
    if (error == nullptr) return "no error: " + response.body;
    const Value* value = error->find(member);
    return value->is_string() ? value->as_string() : json::dump(*value);
  }

  http::Response response;
  bool ended = false;
};

class AppTest : public testing::Test {
 protected:
  static constexpr int64_t kContext = 400;

  void open(const std::string& answer, ServiceOptions options = {},
            engine::EngineOptions engine_options = {},
            std::shared_ptr<std::latch> starts_after = nullptr) {
    open_with_tokens(tokenizer().encode(answer), std::move(options), engine_options,
                     std::move(starts_after));
  }

  void open_with_tokens(std::vector<int32_t> answer, ServiceOptions options = {},
                        engine::EngineOptions engine_options = {},
                        std::shared_ptr<std::latch> starts_after = nullptr) {
    const int32_t eos = *tokenizer().added_token(text::kEos);
    engine_options.stop_token_ids = {eos};
    if (options.model_names.empty()) options.model_names = {"demo", "alias"};
    engine_ = std::make_unique<engine::Engine>(
        std::make_unique<test::ScriptRunner>(std::move(answer), eos, tokenizer().vocab_size(),
                                             kContext, std::move(starts_after)),
        engine_options);
    service_ = std::make_unique<Service>(*engine_, tokenizer(), options);
    app_ = std::make_unique<App>(*service_);
  }

  Answer ask(http::Request request) {
    std::mutex mutex;
    std::condition_variable changed;
    int num_wakes = 1;
    Answer answer;
    const auto exchange = app_->start(std::move(request), [&] {
      const std::lock_guard lock(mutex);
      ++num_wakes;
      changed.notify_one();
    });
    for (bool done = false; !done;) {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return num_wakes > 0; });
        num_wakes = 0;
      }
      done = exchange->advance(answer);
    }
    // The engine may still be inside the last wake-up.
    while (!engine_->idle()) std::this_thread::yield();
    return answer;
  }
  static http::Request request(const char* method, const std::string& path,
                               std::vector<http::Header> headers, const std::string& body = "") {
    http::Request request;
    request.method = method;
    request.path = path;
    request.headers = std::move(headers);
    request.body = body;
    return request;
  }
  Answer get(const std::string& path) { return ask(request("GET", path, {})); }
  Answer post(const std::string& path, const std::string& body,
              std::vector<http::Header> headers = {{"content-type", "application/json"}}) {
    return ask(request("POST", path, std::move(headers), body));
  }
  Answer chat(const std::string& fields) {
    return post("/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"Hi"}])" + fields + "}");
  }

  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<App> app_;
};

const Value& choice(const Value& body, size_t idx = 0) {
  return body.find("choices")->items()[idx];
}

TEST_F(AppTest, AnswersAChat) {
  open("Let me see.\n</think>\n\nParis is nice.");
  const Answer answer = chat("");
  ASSERT_EQ(answer.response.status, 200) << answer.response.body;
  const Value body = answer.json();
  EXPECT_EQ(body.find("object")->as_string(), "chat.completion");
  EXPECT_EQ(body.find("model")->as_string(), "demo");
  const Value* message = choice(body).find("message");
  EXPECT_EQ(message->find("reasoning_content")->as_string(), "Let me see.");
  EXPECT_EQ(message->find("reasoning")->as_string(), "Let me see.");
  EXPECT_EQ(message->find("content")->as_string(), "Paris is nice.");
  EXPECT_EQ(choice(body).find("finish_reason")->as_string(), "stop");
  const Value* usage = body.find("usage");
  const auto completion =
      int64_t(tokenizer().encode("Let me see.\n</think>\n\nParis is nice.").size());
  EXPECT_EQ(usage->find("completion_tokens")->as_int64(), completion);
  EXPECT_EQ(usage->find("completion_tokens_details")->find("reasoning_tokens")->as_int64(),
            int64_t(tokenizer().encode("Let me see.\n").size()));
  EXPECT_EQ(usage->find("total_tokens")->as_int64(),
            *usage->find("prompt_tokens")->as_int64() + completion);
}

// A model that quotes control tokens writes them with ordinary ones: that is text and no structure.
TEST_F(AppTest, QuotedControlTokensAreText) {
  for (const std::string_view quoted : text::kChatTokens) {
    SCOPED_TRACE(quoted);
    const std::string reasoning = "It says " + std::string(quoted) + " there.";
    const std::string content = "You wrote " + std::string(quoted) + ", I think.";
    std::vector<int32_t> tokens = tokenizer().encode(reasoning, text::AddedTokens::kNone);
    tokens.push_back(*tokenizer().added_token(text::kThinkClose));
    for (const int32_t token : tokenizer().encode(content, text::AddedTokens::kNone))
      tokens.push_back(token);
    open_with_tokens(tokens);
    const Answer answer = chat("");
    ASSERT_EQ(answer.response.status, 200) << answer.response.body;
    const Value body = answer.json();
    const Value* message = choice(body).find("message");
    EXPECT_EQ(message->find("reasoning")->as_string(), reasoning);
    EXPECT_EQ(message->find("content")->as_string(), content);
    EXPECT_EQ(choice(body).find("finish_reason")->as_string(), "stop");
    EXPECT_EQ(body.find("usage")->find("completion_tokens")->as_int64(), int64_t(tokens.size()));
  }
}

TEST_F(AppTest, AStreamFoldsToTheWholeAnswer) {
  open("Hm.</think>One two three.");
  const Answer answer = chat(R"(,"stream":true,"stream_options":{"include_usage":true})");
  EXPECT_THAT(answer.response.content_type, StartsWith("text/event-stream"));
  EXPECT_TRUE(answer.ended);
  const auto data = answer.data();
  ASSERT_GE(data.size(), 5u);
  EXPECT_EQ(data.back(), "[DONE]");
  std::string reasoning, content, finish, id;
  for (size_t i = 0; i + 2 < data.size(); ++i) {
    const Value chunk = json::parse(data[i]);
    if (id.empty()) id = chunk.find("id")->as_string();
    EXPECT_EQ(chunk.find("id")->as_string(), id);
    const Value* delta = choice(chunk).find("delta");
    if (const Value* text = delta->find("reasoning_content")) reasoning += text->as_string();
    if (const Value* text = delta->find("content")) content += text->as_string();
    if (!choice(chunk).find("finish_reason")->is_null())
      finish = choice(chunk).find("finish_reason")->as_string();
  }
  EXPECT_EQ(reasoning, "Hm.");
  EXPECT_EQ(content, "One two three.");
  EXPECT_EQ(finish, "stop");
  const Value usage = json::parse(data[data.size() - 2]);
  EXPECT_TRUE(usage.find("choices")->items().empty());
  EXPECT_GT(usage.find("usage")->find("completion_tokens")->as_int64(), 0);
}

TEST_F(AppTest, StopStringsEndTheAnswerAndTheSequence) {
  open("</think>One two END three four five six seven.");
  const Value body = chat(R"(,"stop":["END"])").json();
  EXPECT_EQ(choice(body).find("message")->find("content")->as_string(), "One two ");
  EXPECT_EQ(choice(body).find("finish_reason")->as_string(), "stop");
  EXPECT_EQ(choice(body).find("stop_reason")->as_string(), "END");
  EXPECT_LE(*body.find("usage")->find("completion_tokens")->as_int64(),
            int64_t(tokenizer().encode("</think>One two END").size()));
  EXPECT_EQ(engine_->counters().finished_stop, 1);
}

TEST_F(AppTest, AnAnswerKeepsToItsSchemaWhateverTheModelWouldSay) {
  open(
      "Hm.</think>I would rather not, and I have a lot to say about it, word after word after "
      "word.");
  const Value body =
      chat(R"(,"temperature":0,"response_format":{"type":"json_schema","json_schema":{"name":"n",)"
           R"("schema":{"type":"object","properties":{"ok":{"type":"boolean"}},)"
           R"("required":["ok"],"additionalProperties":false}}})")
          .json();
  const Value* message = choice(body).find("message");
  EXPECT_EQ(message->find("reasoning")->as_string(), "Hm.");
  const Value content = json::parse(message->find("content")->as_string());
  EXPECT_TRUE(content.find("ok")->is_bool());
  EXPECT_EQ(choice(body).find("finish_reason")->as_string(), "stop");
}

TEST_F(AppTest, ASchemaThatCannotBeKeptIsRefusedByPlace) {
  open("</think>x");
  for (const auto& [schema, status, place] : std::vector<std::tuple<std::string, int, std::string>>{
           {R"({"type":"nonsense"})", 400, "schema: type"},
           {R"({"type":"object","properties":{"a":{"oneOf":[{}]}}})", 501, "a: oneOf"},
           {R"({"type":"string","pattern":"(a"})", 400, "schema: pattern"},
           {R"({"type":"string","pattern":"a{99999}"})", 400, "schema: pattern"}}) {
    const Answer answer =
        chat(R"(,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" +
             schema + "}}");
    EXPECT_EQ(answer.response.status, status) << schema;
    EXPECT_THAT(answer.error("message"), HasSubstr(place));
  }
}

// Every level of this schema can be read in two ways.
TEST_F(AppTest, AnAnswerThatCanBeReadInTooManyWaysEndsAlone) {
  std::string nested;
  for (int i = 0; i < 40; ++i) nested += "{\"x\": ";
  open("</think>" + nested);
  const std::string level =
      R"({"type":"object","properties":{"x":{"$ref":"#/$defs/a"}},"required":["x"]})";
  const Answer answer =
      chat(R"(,"temperature":0,"response_format":{"type":"json_schema","json_schema":{"name":"n",)"
           R"("schema":{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[)" +
           level + "," + level + R"(,{"type":"null"}]}}}}})");
  EXPECT_EQ(answer.response.status, 500);
  EXPECT_EQ(answer.error("code"), "generation_failed");
  EXPECT_THAT(answer.error("message"), HasSubstr("too many ways"));
  EXPECT_EQ(chat(R"(,"max_tokens":3)").response.status, 200);
}

TEST_F(AppTest, TheTokenLimitIsALength) {
  open("</think>One two three four five.");
  const Value body = chat(R"(,"max_tokens":4)").json();
  EXPECT_EQ(choice(body).find("finish_reason")->as_string(), "length");
  EXPECT_EQ(body.find("usage")->find("completion_tokens")->as_int64(), 4);
}

TEST_F(AppTest, SeveralChoicesShareAPrompt) {
  open("</think>Yes.");
  const Value one = chat("").json();
  const Value three = chat(R"(,"n":3)").json();
  ASSERT_EQ(three.find("choices")->items().size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(choice(three, i).find("index")->as_int64(), int64_t(i));
    EXPECT_EQ(choice(three, i).find("message")->find("content")->as_string(), "Yes.");
  }
  EXPECT_EQ(three.find("usage")->find("prompt_tokens")->as_int64(),
            one.find("usage")->find("prompt_tokens")->as_int64());
  EXPECT_EQ(*three.find("usage")->find("completion_tokens")->as_int64(),
            3 * *one.find("usage")->find("completion_tokens")->as_int64());
}

constexpr const char* kTool =
    R"(,"tools":[{"type":"function","function":{"name":"get","parameters":{"type":"object",)"
    R"("properties":{"city":{"type":"string"}}}}}])";
const std::string kCall =
    "\n\n<\uff5cDSML\uff5c calls>\n<\uff5cDSML\uff5c invoke name=\"get\">\n<\uff5cDSML\uff5c "
    "parameter name=\"city\" "
    "string=\"true\">Rome</\uff5cDSML\uff5c parameter>\n</\uff5cDSML\uff5c "
    "invoke>\n</\uff5cDSML\uff5c calls>";

TEST_F(AppTest, ToolCallsAreTold) {
  open("Look.</think>" + kCall + "and what never comes");
  const Value body = chat(kTool).json();
  const Value* message = choice(body).find("message");
  EXPECT_TRUE(message->find("content")->is_null());
  const Value& call = message->find("tool_calls")->items().at(0);
  EXPECT_EQ(call.find("function")->find("name")->as_string(), "get");
  EXPECT_EQ(call.find("function")->find("arguments")->as_string(), R"({"city": "Rome"})");
  EXPECT_EQ(choice(body).find("finish_reason")->as_string(), "tool_calls");
}

TEST_F(AppTest, ADemandedCallIsForcedBehindTheReasoning) {
  // The model would rather talk; the forced text takes the place of as many of its tokens.
  open("Look.</think>No call at all from me today, thank you, I would rather talk a lot.");
  const Answer answer = chat(std::string(kTool) + R"(,"tool_choice":"required",)" +
                             R"("return_token_ids":true,"max_tokens":40)");
  std::vector<int32_t> ids;
  const Value body = answer.json();
  for (const Value& id : choice(body).find("token_ids")->items())
    ids.push_back(int32_t(*id.as_int64()));
  std::string text;
  for (const int32_t id : ids) text += tokenizer().token_bytes(id);
  EXPECT_THAT(text, HasSubstr("</think>\n\n<\uff5cDSML\uff5c calls>\n"));
}

TEST_F(AppTest, AReasoningBudgetEndsTheReasoning) {
  open("one two three four five six seven eight nine ten");
  const Value body = chat(R"(,"thinking_token_budget":3,"max_tokens":8)").json();
  EXPECT_EQ(
      body.find("usage")->find("completion_tokens_details")->find("reasoning_tokens")->as_int64(),
      3);
  EXPECT_NE(choice(body).find("message")->find("content")->as_string(), "");
}

TEST_F(AppTest, LogprobsCoverEveryToken) {
  open("Hm.</think>Yes.");
  const Value body = chat(R"(,"logprobs":true,"top_logprobs":2,"return_token_ids":true)").json();
  const Value* content = choice(body).find("logprobs")->find("content");
  const auto ids = tokenizer().encode("Hm.</think>Yes.");
  ASSERT_EQ(content->items().size(), ids.size());
  std::string text;
  for (const Value& entry : content->items()) {
    text += entry.find("token")->as_string();
    EXPECT_LE(entry.find("logprob")->as_double(), 0);
    EXPECT_EQ(entry.find("top_logprobs")->items().size(), 2u);
  }
  EXPECT_EQ(text, "Hm.</think>Yes.");
  // In a stream as well, also what was held back or is markup.
  size_t num_told = 0;
  for (const std::string& data : chat(R"(,"logprobs":true,"stream":true)").data()) {
    if (data == "[DONE]") continue;
    const Value chunk = json::parse(data);
    if (const Value* logprobs = choice(chunk).find("logprobs"); logprobs && !logprobs->is_null())
      num_told += logprobs->find("content")->items().size();
  }
  EXPECT_EQ(num_told, ids.size());
}

TEST_F(AppTest, Completions) {
  open(" fine day");
  const Value body = post("/v1/completions", R"({"prompt":"It is a","echo":true})").json();
  EXPECT_EQ(body.find("object")->as_string(), "text_completion");
  EXPECT_EQ(choice(body).find("text")->as_string(), "It is a fine day");
  EXPECT_EQ(choice(body).find("finish_reason")->as_string(), "stop");
  const Value several =
      post("/v1/completions", R"({"prompt":["a",[5,6,7]],"n":2,"logprobs":1})").json();
  EXPECT_EQ(several.find("choices")->items().size(), 4u);
  EXPECT_EQ(choice(several, 3).find("text")->as_string(), " fine day");
  EXPECT_EQ(choice(several, 0).find("logprobs")->find("tokens")->items().size(),
            tokenizer().encode(" fine day").size());
  std::string text;
  for (const std::string& data :
       post("/v1/completions", R"({"prompt":"a","stream":true,"echo":true,"stop":"day"})").data())
    if (data != "[DONE]") text += choice(json::parse(data)).find("text")->as_string();
  EXPECT_EQ(text, "a fine ");
  for (const char* bad :
       {R"({})", R"({"prompt":"a","max_tokens":0})", R"({"prompt":""})", R"({"prompt":[]})",
        R"({"prompt":[[]]})", R"({"prompt":[1,"a"]})", R"({"prompt":[-1]})",
        R"({"prompt":[99999]})", R"({"prompt":"a","logprobs":21})"}) {
    const Answer answer = post("/v1/completions", bad);
    EXPECT_EQ(answer.response.status, 400) << bad;
    EXPECT_THAT(answer.error("param"), testing::AnyOf("prompt", "logprobs", "max_tokens")) << bad;
  }
}

// The scripted model finds every token of a prompt equally likely; ties go to the lower id.
TEST_F(AppTest, EchoedPromptsHaveLogProbabilities) {
  open(" fine day");
  const auto prompt = tokenizer().encode("It is a \u00e9\u6f22 thing");
  const std::string text = "It is a \u00e9\u6f22 thing fine day";
  const double even = -std::log(double(tokenizer().vocab_size()));
  const std::string fields = R"({"prompt":"It is a \u00e9\u6f22 thing","echo":true,"logprobs":2)";
  const auto check = [&](const Value& logprobs, size_t num_answer) {
    const auto& tokens = logprobs.find("tokens")->items();
    const auto& values = logprobs.find("token_logprobs")->items();
    const auto& tops = logprobs.find("top_logprobs")->items();
    const auto& offsets = logprobs.find("text_offset")->items();
    ASSERT_EQ(tokens.size(), prompt.size() + num_answer);
    ASSERT_EQ(values.size(), tokens.size());
    ASSERT_EQ(tops.size(), tokens.size());
    ASSERT_EQ(offsets.size(), tokens.size());
    EXPECT_TRUE(values[0].is_null());
    EXPECT_TRUE(tops[0].is_null());
    for (size_t i = 1; i < prompt.size(); ++i) {
      EXPECT_NEAR(values[i].as_double(), even, 1e-5);
      EXPECT_EQ(tops[i].members().size(), 2u);
    }
    EXPECT_EQ(offsets[0].as_int64(), 0);
    if (num_answer > 0) {
      EXPECT_EQ(offsets[prompt.size()].as_int64(), 16);  // code points of the prompt
      EXPECT_NEAR(values[prompt.size()].as_double(), 0, 1e-5);
    }
  };
  const size_t num_answer = tokenizer().encode(" fine day").size();
  const Value whole = post("/v1/completions", fields + "}").json();
  EXPECT_EQ(choice(whole).find("text")->as_string(), text);
  check(*choice(whole).find("logprobs"), num_answer);

  // Each choice of a stream has the prompt once, in front.
  std::vector<std::string> texts(2);
  std::vector<size_t> counts(2);
  for (const std::string& data :
       post("/v1/completions", fields + R"(,"n":2,"stream":true})").data()) {
    if (data == "[DONE]") continue;
    const Value chunk = json::parse(data);
    const auto idx = size_t(*choice(chunk).find("index")->as_int64());
    texts[idx] += choice(chunk).find("text")->as_string();
    counts[idx] += choice(chunk).find("logprobs")->find("tokens")->items().size();
  }
  EXPECT_THAT(texts, ElementsAre(text, text));
  EXPECT_THAT(counts, testing::Each(prompt.size() + num_answer));

  // What evaluation tools ask: the prompt alone.
  const Value alone = post("/v1/completions", fields + R"(,"max_tokens":0})").json();
  EXPECT_EQ(choice(alone).find("text")->as_string(), "It is a \u00e9\u6f22 thing");
  EXPECT_EQ(choice(alone).find("finish_reason")->as_string(), "length");
  EXPECT_EQ(alone.find("usage")->find("completion_tokens")->as_int64(), 0);
  check(*choice(alone).find("logprobs"), 0);
}

TEST_F(AppTest, PromptsHaveLogProbabilitiesById) {
  open("</think>Yes.");
  const Value body = chat(R"(,"n":2,"prompt_logprobs":1)").json();
  const auto& entries = body.find("prompt_logprobs")->items();
  ASSERT_EQ(int64_t(entries.size()), body.find("usage")->find("prompt_tokens")->as_int64());
  EXPECT_TRUE(entries[0].is_null());
  const auto& second = entries[1].members();
  ASSERT_FALSE(second.empty());
  EXPECT_EQ(second[0].second.find("rank")->as_int64(), 1);  // everything is as likely
  EXPECT_TRUE(second[0].second.find("decoded_token")->is_string());
  const Value completion =
      post("/v1/completions", R"({"prompt":[5,6,7],"n":2,"prompt_logprobs":0})").json();
  for (size_t i = 0; i < 2; ++i) {
    const auto& tokens = choice(completion, i).find("prompt_logprobs")->items();
    ASSERT_EQ(tokens.size(), 3u);
    ASSERT_EQ(tokens[1].members().size(), 1u);
    EXPECT_EQ(tokens[1].members()[0].first, "6");
  }
  EXPECT_EQ(chat(R"(,"prompt_logprobs":1,"stream":true)").error("param"), "prompt_logprobs");
}

TEST_F(AppTest, MoreAnswersThanTheServerHoldsAreRefused) {
  open("</think>x", {}, {.max_num_seqs = 2, .max_queued_seqs = 3});
  EXPECT_EQ(chat(R"(,"n":5)").response.status, 200);
  const Answer answer = chat(R"(,"n":6)");
  EXPECT_EQ(answer.response.status, 400);
  EXPECT_EQ(answer.error("param"), "n");
}

TEST_F(AppTest, TokenizerEndpoints) {
  open("");
  const auto ids = tokenizer().encode("Hello there");
  const Value body = post("/tokenize", R"({"prompt":"Hello there"})").json();
  EXPECT_EQ(body.find("count")->as_int64(), int64_t(ids.size()));
  EXPECT_EQ(body.find("max_model_len")->as_int64(), kContext);
  EXPECT_EQ(body.find("tokens")->items().size(), ids.size());
  EXPECT_EQ(post("/detokenize", "{\"tokens\":" + json::dump(*body.find("tokens")) + "}")
                .json()
                .find("prompt")
                ->as_string(),
            "Hello there");
  const Value messages =
      post("/tokenize", R"({"messages":[{"role":"user","content":"Hi"}]})").json();
  const Value answer = chat("").json();
  EXPECT_EQ(messages.find("count")->as_int64(),
            answer.find("usage")->find("prompt_tokens")->as_int64());
  EXPECT_EQ(post("/detokenize", R"({"tokens":[9999999]})").error("param"), "tokens");
}

TEST_F(AppTest, ModelsAreListedUnderEveryName) {
  open("</think>x");
  const Value list = get("/v1/models").json();
  ASSERT_EQ(list.find("data")->items().size(), 2u);
  EXPECT_EQ(list.find("data")->items()[1].find("id")->as_string(), "alias");
  EXPECT_EQ(list.find("data")->items()[0].find("max_model_len")->as_int64(), kContext);
  EXPECT_EQ(get("/v1/models/alias").json().find("id")->as_string(), "alias");
  EXPECT_EQ(get("/v1/models/other").response.status, 404);
  EXPECT_EQ(chat(R"(,"model":"alias")").json().find("model")->as_string(), "alias");
  const Answer unknown = chat(R"(,"model":"other")");
  EXPECT_EQ(unknown.response.status, 404);
  EXPECT_EQ(unknown.error("code"), "model_not_found");
}

TEST_F(AppTest, APromptBeyondTheContextSaysWhatAgentsLookFor) {
  open("</think>x");
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "word ";
  const Answer answer =
      post("/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + text + R"("}]})");
  EXPECT_EQ(answer.response.status, 400);
  EXPECT_EQ(answer.error("code"), "context_length_exceeded");
  EXPECT_EQ(answer.error("type"), "invalid_request_error");
  EXPECT_EQ(answer.error("param"), "messages");
  EXPECT_THAT(answer.error("message"), HasSubstr("maximum context length is 400 tokens"));
}

TEST_F(AppTest, RoutesMethodsAndContentTypes) {
  open("");
  EXPECT_EQ(get("/nothing").response.status, 404);
  const Answer wrong_method = get("/v1/chat/completions");
  EXPECT_EQ(wrong_method.response.status, 405);
  EXPECT_THAT(wrong_method.response.headers, testing::Contains(testing::Pair("Allow", "POST")));
  EXPECT_EQ(post("/tokenize", "{}", {{"content-type", "text/plain"}}).response.status, 415);
  EXPECT_EQ(post("/tokenize", R"({"prompt":"a"})", {}).response.status, 200);
  EXPECT_EQ(ask(request("OPTIONS", "/v1/chat/completions", {})).response.status, 204);
  EXPECT_EQ(get("/health").response.status, 200);
  EXPECT_EQ(get("/ping").response.status, 200);
  EXPECT_EQ(get("/version").json().find("version")->as_string(), ONECARD_VERSION);
  EXPECT_EQ(get("/load").json().find("server_load")->as_int64(), 0);
}

TEST_F(AppTest, KeysGuardTheApiAndNothingElse) {
  ServiceOptions options;
  options.api_keys = {"first", "second"};
  open("", options);
  EXPECT_EQ(get("/v1/models").response.status, 401);
  EXPECT_EQ(get("/v1/models").error("code"), "invalid_api_key");
  EXPECT_EQ(get("/health").response.status, 200);
  EXPECT_EQ(get("/metrics").response.status, 200);
  const auto with_header = [&](const char* name, const char* value) {
    return ask(request("GET", "/v1/models", {{name, value}})).response.status;
  };
  EXPECT_EQ(with_header("authorization", "Bearer second"), 200);
  EXPECT_EQ(with_header("x-api-key", "first"), 200);
  for (const char* wrong : {"Bearer ", "Bearer firs", "Bearer first2", "Bearer SECOND", "first"})
    EXPECT_EQ(with_header("authorization", wrong), 401) << wrong;
}

TEST_F(AppTest, AFullQueueIsTooManyRequests) {
  engine::EngineOptions engine_options;
  engine_options.max_num_seqs = 1;
  engine_options.max_queued_seqs = 1;
  const auto let_go = std::make_shared<std::latch>(1);
  open("</think>x", {}, engine_options, let_go);
  const auto body = R"({"messages":[{"role":"user","content":"Hi"}]})";
  const auto running = app_->start(request("POST", "/v1/chat/completions", {}, body), [] {});
  // Of its two sequences the second finds the queue full, and the first does not stay.
  const std::string two = R"({"messages":[{"role":"user","content":"Hi"}],"n":2})";
  Answer refused;
  EXPECT_TRUE(
      app_->start(request("POST", "/v1/chat/completions", {}, two), [] {})->advance(refused));
  EXPECT_EQ(refused.response.status, 429);
  EXPECT_EQ(refused.error("code"), "queue_full");
  EXPECT_THAT(refused.response.headers, testing::Contains(testing::Key("Retry-After")));
  let_go->count_down();
  while (!engine_->idle()) std::this_thread::yield();
  Answer answer;
  EXPECT_TRUE(running->advance(answer));
  EXPECT_EQ(answer.response.status, 200);
  EXPECT_EQ(chat("").response.status, 200);
}

TEST_F(AppTest, DrainingIsSaid) {
  open("</think>x");
  engine_->drain();
  EXPECT_EQ(chat("").response.status, 503);
  EXPECT_EQ(get("/health").response.status, 503);
}

TEST_F(AppTest, ADeadlineIsATimeout) {
  ServiceOptions options;
  options.request_timeout_seconds = 1e-9;
  open("</think>One two three.", options);
  const Answer answer = chat("");
  EXPECT_EQ(answer.response.status, 504);
  EXPECT_EQ(answer.error("code"), "deadline_exceeded");
  const auto data = chat(R"(,"stream":true)").data();
  EXPECT_THAT(data.at(data.size() - 2), HasSubstr("deadline_exceeded"));
  EXPECT_EQ(data.back(), "[DONE]");
}

TEST_F(AppTest, ImagesAreRefusedByName) {
  open("</think>x");
  const std::string url = "data:image/png;base64,AAAA";
  const Answer chat_answer =
      post("/v1/chat/completions",
           R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":")" +
               url + R"("}}]}]})");
  EXPECT_EQ(chat_answer.response.status, 501);
  EXPECT_THAT(chat_answer.error("message"), HasSubstr("images are not supported"));
  EXPECT_THAT(chat_answer.error("param"), StartsWith("messages[0].content[0]"));
  const Answer response = post("/v1/responses", R"({"input":[{"role":"user","content":[)"
                                                R"({"type":"input_image","image_url":")" +
                                                    url + R"("}]}]})");
  EXPECT_EQ(response.response.status, 501);
  EXPECT_EQ(response.error("param"), "input[0].content[0].type");
  const Answer message =
      post("/v1/messages", R"({"max_tokens":5,"messages":[{"role":"user","content":[)"
                           R"({"type":"image","source":{"type":"url","url":")" +
                               url + R"("}}]}]})");
  EXPECT_EQ(message.response.status, 501);
  EXPECT_EQ(message.json().find("type")->as_string(), "error");
  EXPECT_THAT(message.error("message"), HasSubstr("images are not supported"));
}

// Without a seed of its own a request gets the server's, if there is one; choices still differ.
TEST_F(AppTest, ADefaultSeedRepeatsAnswers) {
  ServiceOptions options;
  options.default_seed = 7;
  open("</think>x", options);
  openai::GenerationFields fields;
  EXPECT_EQ(service_->sequence_request(fields, {1}, 0).sampling.seed, 7u);
  EXPECT_EQ(service_->sequence_request(fields, {1}, 2).sampling.seed, 9u);
  fields.sampling.seed = 1;
  EXPECT_EQ(service_->sequence_request(fields, {1}, 2).sampling.seed, 3u);
}

// What the usual dashboards draw.
TEST_F(AppTest, MetricsHaveTheNamesOfDashboards) {
  open("</think>One two.");
  chat("");
  const std::string text = get("/metrics").response.body;
  for (const char* name :
       {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
        "prompt_tokens_total", "generation_tokens_total", "request_success_total",
        "prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_cached_total",
        "num_preemptions_total", "cache_config_info", "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"}) {
    EXPECT_THAT(text,
                HasSubstr("\nvllm:" + std::string(name) + R"({engine="0",model_name="demo")"));
    EXPECT_THAT(text, HasSubstr("# TYPE vllm:" + std::string(name) + " "));
  }
  for (const char* name :
       {"e2e_request_latency_seconds", "time_to_first_token_seconds", "inter_token_latency_seconds",
        "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
        "request_inference_time_seconds", "request_time_per_output_token_seconds",
        "request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens",
        "request_params_n", "request_params_max_tokens", "iteration_tokens_total"}) {
    EXPECT_THAT(text, HasSubstr("# TYPE vllm:" + std::string(name) + " histogram"));
    EXPECT_THAT(text, HasSubstr("\nvllm:" + std::string(name) +
                                R"(_bucket{engine="0",model_name="demo",le="+Inf"} )"));
  }
  EXPECT_THAT(text, HasSubstr("# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter"));
}

TEST_F(AppTest, MetricsCountWhatHappened) {
  open("</think>One two.");
  chat("");
  chat(R"(,"max_tokens":2)");
  const std::string text = get("/metrics").response.body;
  const std::string labels = R"({engine="0",model_name="demo")";
  EXPECT_THAT(text,
              HasSubstr("vllm:request_success_total" + labels + ",finished_reason=\"stop\"} 1"));
  EXPECT_THAT(text,
              HasSubstr("vllm:request_success_total" + labels + ",finished_reason=\"length\"} 1"));
  EXPECT_THAT(text, HasSubstr("vllm:num_requests_running" + labels + "} 0"));
  EXPECT_THAT(text, HasSubstr("vllm:time_to_first_token_seconds_count" + labels + "} 2"));
  EXPECT_THAT(text,
              HasSubstr("vllm:e2e_request_latency_seconds_bucket" + labels + ",le=\"+Inf\"} 2"));
  EXPECT_THAT(text, HasSubstr("# TYPE vllm:inter_token_latency_seconds histogram"));
}

}  // namespace
}  // namespace onecard::server
