// Bodies of /v1/messages and /v1/responses against tests/golden/chat (anthropic.json,
// responses.json): each gives the prompt of the chat body that the vector names. Rules without a
// vector by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/anthropic/message_request.h"
#include "server/openai/response_request.h"
#include "support/files.h"
#include "text/chat_encoder.h"
#include "text/chat_json.h"

namespace onecard::server {
namespace {

using json::Value;
using testing::HasSubstr;
using testing::StartsWith;

std::string chat_prompt(const Value& body) {
  return text::encode_chat(text::conversation_from_json(body)).text;
}
openai::ChatRequest message_request(const std::string& body) {
  return anthropic::message_request_from_json(json::parse(body), {}, true);
}
openai::ResponseRequest response_request(const std::string& body) {
  return openai::response_request_from_json(json::parse(body), {});
}

TEST(MessageRequest, GivesThePromptsOfTheVectors) {
  const Value file = json::parse(test::read_file(test::golden_path("chat/anthropic.json")));
  for (const Value& vector : file.find("cases")->items()) {
    const auto request = anthropic::message_request_from_json(*vector.find("request"), {}, true);
    EXPECT_EQ(text::encode_chat(request.conversation).text,
              chat_prompt(*vector.find("prompt_from_chat")))
        << vector.find("name")->as_string();
  }
}

TEST(ResponseRequest, GivesThePromptsOfTheVectors) {
  const Value file = json::parse(test::read_file(test::golden_path("chat/responses.json")));
  for (const Value& vector : file.find("cases")->items()) {
    const auto request = openai::response_request_from_json(*vector.find("request"), {});
    EXPECT_EQ(text::encode_chat(request.chat.conversation).text,
              chat_prompt(*vector.find("prompt_from_chat")))
        << vector.find("name")->as_string();
  }
}

TEST(MessageRequest, ReadsWhatConcernsSampling) {
  const auto request = message_request(
      R"({"model":"m","max_tokens":7,"messages":[{"role":"user","content":"x"}],"temperature":0.5,)"
      R"("top_k":3,"stop_sequences":["a","b"],"stream":true,"metadata":{"user_id":"u"},)"
      R"("thinking":{"type":"enabled","budget_tokens":50},"output_config":{"effort":"low"}})");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.generation.max_tokens, 7);
  EXPECT_EQ(request.generation.sampling.temperature, 0.5);
  EXPECT_EQ(request.generation.sampling.top_k, 3);
  EXPECT_THAT(request.generation.stop, testing::ElementsAre("a", "b"));
  EXPECT_TRUE(request.generation.stream);
  EXPECT_TRUE(request.conversation.thinking);
  EXPECT_EQ(request.conversation.effort, 50);
  EXPECT_EQ(request.thinking_token_budget, 50);
}

TEST(MessageRequest, LeavesOutTheHeaderThatChangesWithEveryRequest) {
  const auto with_header = message_request(
      R"({"max_tokens":7,"messages":[{"role":"user","content":"x"}],"system":[)"
      R"({"type":"text","text":"x-anthropic-billing-header: 123"},{"type":"text","text":"A"},)"
      R"({"type":"text","text":"B","cache_control":{"type":"ephemeral"}}]})");
  const auto without = message_request(
      R"({"max_tokens":7,"messages":[{"role":"user","content":"x"}],"system":"A\n\nB"})");
  EXPECT_EQ(text::encode_chat(with_header.conversation).text,
            text::encode_chat(without.conversation).text);
}

TEST(MessageRequest, AnAnswerThatWasBegunGoesOn) {
  const auto request = message_request(
      R"({"max_tokens":7,"thinking":{"type":"disabled"},"messages":[)"
      R"({"role":"user","content":"x"},{"role":"assistant","content":"The answer is"}]})");
  EXPECT_THAT(text::encode_chat(request.conversation).text, testing::EndsWith("The answer is"));
}

TEST(MessageRequest, RefusesNamingTheField) {
  const std::string messages = R"("messages":[{"role":"user","content":"x"}])";
  const std::pair<std::string, const char*> cases[] = {
      {"{" + messages + "}", "max_tokens: "},
      {R"({"max_tokens":0,)" + messages + "}", "max_tokens: "},
      {R"({"max_tokens":1})", "messages: "},
      {R"({"max_tokens":1,"messages":[]})", "messages: "},
      {R"({"max_tokens":1,"messages":[{"role":"robot","content":"x"}]})", "messages[0].role: "},
      {R"({"max_tokens":1,"messages":[{"role":"user"}]})", "messages[0].content: "},
      {R"({"max_tokens":1,"messages":[{"role":"user","content":[{"type":"video"}]}]})",
       "messages[0].content[0].type: "},
      {R"({"max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result"}]}]})",
       "messages[0].content[0].tool_use_id: "},
      {R"({"max_tokens":1,"stop_sequences":[""],)" + messages + "}", "stop_sequences: "},
      {R"({"max_tokens":1,"top_p":0,)" + messages + "}", "top_p: "},
      {R"({"max_tokens":1,"tools":[{"type":"web_search_20250305","name":"w"}],)" + messages + "}",
       "tools[0].type: "},
      {R"({"max_tokens":1,"tool_choice":{"type":"some"},)" + messages + "}", "tool_choice.type: "},
      {R"({"max_tokens":1,"thinking":{"type":"yes"},)" + messages + "}", "thinking.type: "},
      {R"({"max_tokens":1,"output_config":{"effort":"huge"},)" + messages + "}",
       "output_config.effort: "},
      {"[]", "body: "}};
  for (const auto& [body, start] : cases) {
    try {
      message_request(body);
      ADD_FAILURE() << body;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), StartsWith(start));
    }
  }
}

TEST(ResponseRequest, PairsOutputsWithTheirCalls) {
  // The output of the first call comes late, behind the next question.
  const auto request = response_request(
      R"({"input":[{"role":"user","content":"x"},)"
      R"({"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},)"
      R"({"type":"function_call","call_id":"c2","name":"g","namespace":"ns","arguments":"{}"},)"
      R"({"type":"function_call_output","call_id":"c2","output":"two"},)"
      R"({"role":"user","content":"y"},)"
      R"({"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"one"}]}]})");
  const auto& messages = request.chat.conversation.messages;
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[1].role, text::Role::kAssistant);
  ASSERT_EQ(messages[1].tool_calls.size(), 2u);
  EXPECT_EQ(messages[1].tool_calls[1].name, "ns::g");
  EXPECT_EQ(messages[2].role, text::Role::kTool);
  EXPECT_EQ(messages[3].role, text::Role::kTool);
  EXPECT_EQ(messages[4].content[0].text, "y");
}

TEST(ResponseRequest, KnowsTheKindsOfTools) {
  const auto request = response_request(
      R"({"input":"x","tools":[{"type":"web_search"},)"
      R"({"type":"custom","name":"apply_patch","description":"Patch"},)"
      R"({"type":"namespace","name":"ns","description":"Space","tools":[)"
      R"({"type":"function","name":"f","description":"Do","parameters":{"type":"object"}}]}]})");
  const auto& tools = request.chat.conversation.tools;
  ASSERT_EQ(tools.size(), 2u);
  EXPECT_EQ(tools[0].name, "apply_patch");
  EXPECT_EQ(tools[1].name, "ns::f");
  EXPECT_EQ(tools[1].description, "Space\nDo");
  EXPECT_THAT(request.custom_tools, testing::ElementsAre("apply_patch"));
}

TEST(ResponseRequest, ReadsWhatConcernsSampling) {
  const auto request = response_request(
      R"({"model":"m","input":"x","instructions":"Be brief.","max_output_tokens":9,)"
      R"("temperature":0,"reasoning":{"effort":"none"},"stream":true,"store":true,)"
      R"("parallel_tool_calls":false,"text":{"format":{"type":"json_object"}}})");
  EXPECT_EQ(request.chat.generation.max_tokens, 9);
  EXPECT_EQ(request.chat.generation.sampling.temperature, 0);
  EXPECT_FALSE(request.chat.conversation.thinking);
  EXPECT_FALSE(request.chat.parallel_tool_calls);
  EXPECT_TRUE(request.chat.generation.stream);
  EXPECT_EQ(request.chat.conversation.messages[0].role, text::Role::kSystem);
  EXPECT_EQ(request.chat.conversation.response_format.kind,
            text::ResponseFormat::Kind::kJsonObject);
}

TEST(ResponseRequest, RefusesNamingTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "input: "},
      {R"({"input":7})", "input: "},
      {R"({"input":[]})", "input: "},
      {R"({"input":[{"type":"item_reference","id":"a"}]})", "input[0].type: "},
      {R"({"input":[{"role":"robot","content":"x"}]})", "input[0].role: "},
      {R"({"input":[{"type":"function_call","name":"f"}]})", "input[0].call_id: "},
      {R"({"input":"x","previous_response_id":"r"})", "previous_response_id: "},
      {R"({"input":"x","background":true})", "background: "},
      {R"({"input":"x","max_output_tokens":0})", "max_output_tokens: "},
      {R"({"input":"x","reasoning":{"effort":"huge"}})", "reasoning.effort: "},
      {R"({"input":"x","tool_choice":"some"})", "tool_choice: "},
      {R"({"input":"x","text":{"format":{"type":"xml"}}})", "text.format.type: "}};
  for (const auto& [body, start] : cases) {
    try {
      response_request(body);
      ADD_FAILURE() << body;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), StartsWith(start));
    }
  }
}

}  // namespace
}  // namespace onecard::server
