// The three protocols against tests/golden/chat (sse.json, anthropic.json, responses.json): shapes
// after the public APIs and servers. Model output goes through the output parser, its events into
// each protocol.
#include <gtest/gtest.h>

#include <functional>

#include "base/json.h"
#include "server/anthropic/message_answer.h"
#include "server/openai/chat_answer.h"
#include "server/openai/response_answer.h"
#include "support/files.h"
#include "text/chat_json.h"
#include "text/message_fold.h"
#include "text/output_parser.h"

namespace onecard::server {
namespace {

using json::Value;

constexpr Usage kUsage = {
    .prompt_tokens = 30, .cached_tokens = 16, .completion_tokens = 9, .reasoning_tokens = 3};

Value load(const std::string& name) {
  return json::parse(test::read_file(test::golden_path("chat/" + name)));
}

const std::string& text_of(const Value& object, std::string_view key) {
  return object.find(key)->as_string();
}

std::string counting_id(std::string_view prefix) {
  static int count = 0;
  return std::string(prefix) + std::to_string(count++);
}

// Thinking is on unless the request says otherwise: what the prompt would have ended in.
text::OutputParser parser_for(const Value& request) {
  text::OutputParserOptions options;
  options.start = text::ParserStart::kReasoning;
  if (const Value* kwargs = request.find("chat_template_kwargs"))
    if (!kwargs->find("thinking")->as_bool()) options.start = text::ParserStart::kContent;
  if (const Value* tools = request.find("tools"))
    for (const Value& tool : tools->items()) {
      text::ToolDefinition definition;
      const Value* function = tool.find("function") ? tool.find("function") : &tool;
      definition.name = text_of(*function, "name");
      const Value* parameters = function->find("parameters");
      if (!parameters) parameters = function->find("input_schema");
      definition.parameters = *parameters;
      options.tools.push_back(definition);
    }
  return text::OutputParser(options);
}

text::OutputEnd end_of(const Value& vector) {
  return text_of(vector, "end") == "length" ? text::OutputEnd::kTokenLimit
                                            : text::OutputEnd::kEndOfTurn;
}

// The events of each piece of a vector's output, and those of its end.
std::vector<text::MessageEvents> events_of(const Value& vector) {
  text::OutputParser parser = parser_for(*vector.find("request"));
  std::vector<text::MessageEvents> events;
  for (const Value& piece : vector.find("engine")->items())
    if (piece.as_string() != "<engine failure>") events.push_back(parser.feed(piece.as_string()));
  if (text_of(vector, "end") != "error") events.push_back(parser.finish(end_of(vector)));
  return events;
}

// Neighbouring deltas of one call or text become one, so that the cut does not matter; `text_of`
// finds the text in an event, or gives null.
void merge_deltas(std::vector<Value>& events, const std::vector<const char*>& text_path) {
  const auto at = [&](Value& event) {
    Value* value = &event;
    for (const char* key : text_path) {
      const Value* next = value->find(key);
      if (!next) return static_cast<Value*>(nullptr);
      value = const_cast<Value*>(next);
    }
    return value;
  };
  for (size_t i = 0; i + 1 < events.size();) {
    Value* a = at(events[i]);
    Value* b = at(events[i + 1]);
    if (a && b) {
      const std::string first = a->as_string(), second = b->as_string();
      *a = *b = Value::string("");
      const bool same = json::dump(events[i]) == json::dump(events[i + 1]);
      *a = Value::string(same ? first + second : first);
      *b = Value::string(second);
      if (same) {
        events.erase(events.begin() + long(i) + 1);
        continue;
      }
    }
    ++i;
  }
}

// Every member that the pattern has; "*" stands for anything and "call_*" for a prefix. Members
// that the pattern does not name are allowed when `open`.
void expect_like(const Value& got, const Value& pattern, bool open, const std::string& where) {
  if (pattern.is_string() && pattern.as_string().ends_with("*")) {
    const std::string prefix = pattern.as_string().substr(0, pattern.as_string().size() - 1);
    if (prefix.empty()) return;
    ASSERT_TRUE(got.is_string()) << where;
    EXPECT_TRUE(got.as_string().starts_with(prefix)) << where << ": " << got.as_string();
    return;
  }
  if (pattern.is_object()) {
    ASSERT_TRUE(got.is_object()) << where;
    for (const json::Member& member : pattern.members()) {
      const Value* value = got.find(member.first);
      ASSERT_NE(value, nullptr) << where << "." << member.first << " in " << json::dump(got);
      expect_like(*value, member.second, open, where + "." + member.first);
    }
    if (!open) {
      EXPECT_EQ(got.members().size(), pattern.members().size()) << where << json::dump(got);
    }
    return;
  }
  if (pattern.is_array()) {
    ASSERT_TRUE(got.is_array()) << where;
    ASSERT_EQ(got.items().size(), pattern.items().size()) << where << ": " << json::dump(got);
    for (size_t i = 0; i < pattern.items().size(); ++i)
      expect_like(got.items()[i], pattern.items()[i], open, where + "[" + std::to_string(i) + "]");
    return;
  }
  EXPECT_EQ(json::dump(got), json::dump(pattern)) << where;
}

void expect_events_like(const std::vector<Value>& got, const std::vector<Value>& pattern,
                        bool open) {
  ASSERT_EQ(got.size(), pattern.size()) << json::dump(Value::array(got));
  for (size_t i = 0; i < got.size(); ++i)
    expect_like(got[i], pattern[i], open, "event " + std::to_string(i));
}

// ---- /v1/chat/completions ----

const openai::ChatAnswer kChat = {.id = "chatcmpl-1", .model = "m", .created = 7};

TEST(ChatAnswer, StreamsLikeTheVectors) {
  int num_checked = 0;
  const Value file = load("sse.json");
  for (const Value& vector : file.find("stream")->items()) {
    SCOPED_TRACE(text_of(vector, "name"));
    openai::ChatChoiceStream stream(kChat, 0, counting_id);
    std::vector<Value> got = {stream.first_chunk()};
    for (const text::MessageEvents& events : events_of(vector))
      for (const text::MessageEvent& event : events)
        if (auto chunk = stream.chunk(event)) got.push_back(*chunk);
    if (vector.find("request")->find("stream_options"))
      got.push_back(openai::usage_chunk(kChat, kUsage));
    std::vector<Value> pattern;
    for (const Value& event : vector.find("events")->items()) {
      if (event.is_string() || event.find("error")) continue;  // sent by the transport
      pattern.push_back(event);
      pattern.back().set("id", Value::string("chatcmpl-1"));
      pattern.back().set("model", Value::string("m"));
      pattern.back().set("created", Value::integer(7));
    }
    // One chunk a step: the deltas are compared as they are, not folded.
    expect_events_like(got, pattern, false);
    ++num_checked;
  }
  EXPECT_EQ(num_checked, 6);
}

TEST(ChatAnswer, WholeAnswerLikeTheVector) {
  const Value file = load("sse.json");
  const Value& vector = file.find("full")->items()[0];
  text::OutputParser parser = parser_for(*vector.find("request"));
  text::ParsedMessage message;
  for (const text::MessageEvent& event : parser.feed(text_of(vector, "raw"))) fold(event, message);
  for (const text::MessageEvent& event : parser.finish(text::OutputEnd::kEndOfTurn))
    fold(event, message);
  const Value body = openai::chat_completion(
      kChat, {openai::chat_choice(kChat, 0, message, {}, std::nullopt, counting_id)}, kUsage);
  expect_like(body, *vector.find("response"), false, "body");
}

// musistudio/claude-code-router 1205: a client that knows one name of the reasoning field shows
// nothing when the other is sent.
TEST(ChatAnswer, ReasoningUnderBothNamesOrOneOrNone) {
  const text::MessageEvent event = text::ReasoningDelta{"hm"};
  const auto delta_of = [&](const openai::ChatAnswer& answer) -> std::string {
    openai::ChatChoiceStream stream(answer, 0);
    const auto chunk = stream.chunk(event);
    return chunk ? json::dump(*chunk->find("choices")->items()[0].find("delta")) : "";
  };
  openai::ChatAnswer answer = kChat;
  EXPECT_EQ(delta_of(answer), R"({"reasoning_content":"hm","reasoning":"hm"})");
  answer.both_reasoning_fields = false;
  EXPECT_EQ(delta_of(answer), R"({"reasoning_content":"hm"})");
  answer.include_reasoning = false;
  EXPECT_EQ(delta_of(answer), "");
}

// sgl-project/sglang 7934: a stream of calls ends with "stop", the whole answer with "tool_calls".
TEST(ChatAnswer, StreamAndWholeAnswerFinishAlike) {
  for (const text::FinishReason reason :
       {text::FinishReason::kStop, text::FinishReason::kLength, text::FinishReason::kToolCalls}) {
    openai::ChatChoiceStream stream(kChat, 0);
    text::ParsedMessage message;
    const text::MessageEvent end = text::MessageEnd{reason, "END"};
    fold(end, message);
    const Value last = stream.chunk(end)->find("choices")->items()[0];
    const Value choice = openai::chat_choice(kChat, 0, message, {}, std::nullopt);
    EXPECT_EQ(text_of(last, "finish_reason"), finish_reason_name(reason));
    EXPECT_EQ(text_of(choice, "finish_reason"), finish_reason_name(reason));
    EXPECT_EQ(text_of(last, "stop_reason"), "END");
    EXPECT_EQ(text_of(choice, "stop_reason"), "END");
  }
}

TEST(ChatAnswer, StopTokenIsTheStopReason) {
  openai::ChatChoiceStream stream(kChat, 2);
  const auto chunk = stream.chunk(text::MessageEnd{}, 128803);
  EXPECT_EQ(json::dump(chunk->find("choices")->items()[0]),
            R"({"index":2,"delta":{},"finish_reason":"stop","stop_reason":128803})");
}

TEST(RandomId, IsLongAndDiffers) {
  const std::string a = random_id("call_"), b = random_id("call_");
  EXPECT_TRUE(a.starts_with("call_"));
  EXPECT_GE(a.size(), 5u + 16u);
  EXPECT_NE(a, b);
}

// ---- /v1/messages ----

TEST(AnthropicAnswer, StreamsLikeTheVector) {
  const Value file = load("anthropic.json");
  const Value& vector = file.find("cases")->items()[0];
  anthropic::MessageStream stream({.id = "msg_1", .model = "m"}, counting_id);
  std::vector<anthropic::StreamEvent> events = {stream.start(kUsage)};
  for (const text::MessageEvents& piece : events_of(vector))
    for (const text::MessageEvent& event : piece) stream.add(event, kUsage, events);
  std::vector<Value> got;
  for (const anthropic::StreamEvent& event : events) {
    EXPECT_EQ(event.name, text_of(event.data, "type"));
    got.push_back(event.data);
  }
  merge_deltas(got, {"delta", "partial_json"});
  std::vector<Value> pattern;
  for (const Value& event : vector.find("events")->items()) {
    EXPECT_EQ(event.items()[0].as_string(), text_of(event.items()[1], "type"));
    pattern.push_back(event.items()[1]);
  }
  expect_events_like(got, pattern, true);
}

text::MessageEvents tool_call_events(text::FinishReason reason) {
  text::MessageEvents events = {text::ReasoningDelta{"hm"}, text::ContentDelta{"On it."},
                                text::CallStart{0, "ns::f"}, text::ArgumentsDelta{0, "{\"a\": [1"}};
  if (reason != text::FinishReason::kLength) {
    events.push_back(text::ArgumentsDelta{0, "]}"});
    events.push_back(text::CallEnd{0});
  }
  events.push_back(text::MessageEnd{reason, ""});
  return events;
}

TEST(AnthropicAnswer, WholeAnswer) {
  const text::ParsedMessage message = fold(tool_call_events(text::FinishReason::kToolCalls));
  const Value body =
      anthropic::message_body({.id = "msg_1", .model = "m"}, message, kUsage,
                              [](std::string_view prefix) { return std::string(prefix) + "1"; });
  EXPECT_EQ(json::dump(body),
            R"({"id":"msg_1","type":"message","role":"assistant","model":"m","content":[)"
            R"({"type":"thinking","thinking":"hm","signature":"unsigned"},)"
            R"({"type":"text","text":"On it."},)"
            R"({"type":"tool_use","id":"toolu_1","name":"ns::f","input":{"a":[1]}}],)"
            R"("stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":14,)"
            R"("output_tokens":9,"cache_creation_input_tokens":0,"cache_read_input_tokens":16}})");
}

TEST(AnthropicAnswer, CutCallHasNoBlockInTheWholeAnswer) {
  const text::ParsedMessage message = fold(tool_call_events(text::FinishReason::kLength));
  const Value body = anthropic::message_body({.id = "msg_1", .model = "m"}, message, kUsage);
  EXPECT_EQ(body.find("content")->items().size(), 2u);
  EXPECT_EQ(text_of(body, "stop_reason"), "max_tokens");
}

TEST(AnthropicAnswer, StopReasons) {
  const auto stop_of = [](const text::MessageEnd& end) {
    anthropic::MessageStream stream({.id = "msg_1", .model = "m"});
    std::vector<anthropic::StreamEvent> out;
    stream.add(end, kUsage, out);
    return json::dump(*out[0].data.find("delta"));
  };
  EXPECT_EQ(stop_of({text::FinishReason::kStop, ""}),
            R"({"stop_reason":"end_turn","stop_sequence":null})");
  EXPECT_EQ(stop_of({text::FinishReason::kStop, "END"}),
            R"({"stop_reason":"stop_sequence","stop_sequence":"END"})");
  EXPECT_EQ(json::dump(anthropic::error_body("api_error", "no")),
            R"({"type":"error","error":{"type":"api_error","message":"no"}})");
}

// ---- /v1/responses ----

const openai::ResponseAnswer kResponse = {
    .id = "resp_1", .model = "m", .created = 7, .custom_tools = {"apply_patch"}, .echo = {}};

TEST(ResponseAnswer, StreamsLikeTheVector) {
  const Value file = load("responses.json");
  const Value& vector = file.find("cases")->items()[0];
  openai::ResponseStream stream(kResponse, counting_id);
  std::vector<Value> got;
  stream.start(got);
  for (const text::MessageEvents& piece : events_of(vector))
    for (const text::MessageEvent& event : piece) stream.add(event, kUsage, got);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].find("sequence_number")->as_int64(), int64_t(i));
    got[i].set("sequence_number", Value());
  }
  merge_deltas(got, {"delta"});
  std::vector<Value> pattern;
  for (const Value& event : vector.find("events")->items()) {
    pattern.push_back(event.items()[1]);
    pattern.back().set("type", event.items()[0]);
  }
  expect_events_like(got, pattern, true);
}

TEST(ResponseAnswer, ReportsWhatTheTokenLimitCut) {
  const Value body =
      openai::response_body(kResponse, tool_call_events(text::FinishReason::kLength), kUsage);
  EXPECT_EQ(text_of(body, "status"), "incomplete");
  EXPECT_EQ(text_of(*body.find("incomplete_details"), "reason"), "max_output_tokens");
  const Value& call = body.find("output")->items()[2];
  EXPECT_EQ(text_of(call, "status"), "incomplete");
  EXPECT_EQ(text_of(call, "arguments"), "{\"a\": [1");
  EXPECT_EQ(text_of(call, "namespace"), "ns");
  EXPECT_EQ(text_of(call, "name"), "f");
}

TEST(ResponseAnswer, CustomToolGetsItsTextAlone) {
  const text::MessageEvents events = {text::CallStart{0, "apply_patch"},
                                      text::ArgumentsDelta{0, "{\"input\": \"a\\n"},
                                      text::ArgumentsDelta{0, "b\"}"}, text::CallEnd{0},
                                      text::MessageEnd{text::FinishReason::kToolCalls, ""}};
  openai::ResponseStream stream(kResponse, counting_id);
  std::vector<Value> got;
  for (const text::MessageEvent& event : events) stream.add(event, kUsage, got);
  ASSERT_EQ(got.size(), 5u);
  EXPECT_EQ(text_of(got[1], "type"), "response.custom_tool_call_input.delta");
  EXPECT_EQ(text_of(got[1], "delta"), "a\nb");
  const Value& item = stream.response().find("output")->items()[0];
  EXPECT_EQ(text_of(item, "type"), "custom_tool_call");
  EXPECT_EQ(text_of(item, "input"), "a\nb");
}

// vllm-project/vllm 55284: a step that holds the end of one call and the beginning of the next item
// breaks the stream. Items never overlap, and each that is added is done.
TEST(ResponseAnswer, ItemsNeverOverlap) {
  const text::MessageEvents events = {text::ReasoningDelta{"r"},
                                      text::CallStart{0, "f"},
                                      text::ArgumentsDelta{0, "{}"},
                                      text::CallEnd{0},
                                      text::CallStart{1, "g"},
                                      text::ArgumentsDelta{1, "{}"},
                                      text::CallEnd{1},
                                      text::MessageEnd{text::FinishReason::kToolCalls, ""}};
  openai::ResponseStream stream(kResponse, counting_id);
  std::vector<Value> got;
  for (const text::MessageEvent& event : events) stream.add(event, kUsage, got);
  int64_t open_idx = -1, num_done = 0;
  for (const Value& event : got) {
    const std::string& type = text_of(event, "type");
    if (type == "response.output_item.added") {
      EXPECT_EQ(open_idx, -1);
      open_idx = *event.find("output_index")->as_int64();
      EXPECT_EQ(open_idx, num_done);
    } else if (type == "response.output_item.done") {
      EXPECT_EQ(*event.find("output_index")->as_int64(), open_idx);
      open_idx = -1;
      ++num_done;
    }
  }
  EXPECT_EQ(num_done, 3);
}

TEST(ResponseAnswer, FailureIsTheLastEvent) {
  openai::ResponseStream stream(kResponse, counting_id);
  std::vector<Value> got;
  stream.start(got);
  stream.fail("server_error", "the engine failed", got);
  EXPECT_EQ(text_of(got.back(), "type"), "response.failed");
  EXPECT_EQ(text_of(*got.back().find("response"), "status"), "failed");
}

}  // namespace
}  // namespace onecard::server
