// The output parser against tests/golden/chat/parse.json (cases of public servers, and cases
// derived from the rules by an independent implementation), in every cut; and against reports of
// what goes wrong in other servers.
#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <random>

#include "base/json.h"
#include "support/files.h"
#include "text/chat_json.h"
#include "text/chat_tokens.h"
#include "text/message_fold.h"

namespace onecard::text {

bool operator==(const ParsedCall& a, const ParsedCall& b) {
  return a.name == b.name && a.arguments == b.arguments;
}

void PrintTo(const ParsedCall& call, std::ostream* os) { *os << call.name << call.arguments; }

namespace {

using Pieces = std::vector<std::string>;

OutputParserOptions with_tools(const char* tools) {
  OutputParserOptions options;
  const json::Value list = json::parse(tools);
  for (const json::Value& tool : list.items())
    options.tools.push_back(tool_from_json(tool, options.tools.size()));
  return options;
}

ParsedMessage parse(const OutputParserOptions& options, const Pieces& pieces,
                    OutputEnd end = OutputEnd::kEndOfTurn) {
  OutputParser parser(options);
  ParsedMessage message;
  for (const std::string& piece : pieces)
    for (const MessageEvent& event : parser.feed(piece)) fold(event, message);
  for (const MessageEvent& event : parser.finish(end)) fold(event, message);
  EXPECT_TRUE(parser.wants_stop());
  return message;
}

void expect_same(const ParsedMessage& got, const ParsedMessage& expected) {
  EXPECT_EQ(got.reasoning, expected.reasoning);
  EXPECT_EQ(got.content, expected.content);
  EXPECT_EQ(got.calls, expected.calls);
  EXPECT_EQ(got.finish_reason, expected.finish_reason);
}

Pieces code_points(const std::string& text) {
  Pieces pieces;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xc0) == 0x80)
      pieces.back() += c;
    else
      pieces.emplace_back(1, c);
  }
  return pieces;
}

Pieces bytes(const std::string& text) {
  Pieces pieces;
  for (const char c : text) pieces.emplace_back(1, c);
  return pieces;
}

Pieces random_cut(const std::string& text, std::mt19937& random) {
  // Small pieces find cuts inside tags, large ones find what a piece with several tags does.
  std::uniform_int_distribution<size_t> size(1, random() % 2 == 0 ? 4 : 40);
  Pieces pieces;
  for (size_t begin = 0; begin < text.size();) {
    pieces.push_back(text.substr(begin, size(random)));
    begin += pieces.back().size();
  }
  return pieces;
}

// The message of the whole text, after checking that hundreds of cuts give the same.
ParsedMessage parse_in_all_cuts(const OutputParserOptions& options, const std::string& raw,
                                OutputEnd end = OutputEnd::kEndOfTurn) {
  const ParsedMessage whole = parse(options, {raw}, end);
  expect_same(parse(options, code_points(raw), end), whole);
  expect_same(parse(options, bytes(raw), end), whole);
  std::mt19937 random(1);
  for (int i = 0; i < 200 && !testing::Test::HasFailure(); ++i)
    expect_same(parse(options, random_cut(raw, random), end), whole);
  return whole;
}

// ---- The vectors ----

struct Vector {
  OutputParserOptions options;
  std::string raw;
  OutputEnd end = OutputEnd::kEndOfTurn;
  ParsedMessage expect;
  bool content_is_null = false;
  std::vector<Pieces> chunkings;
  std::vector<ParsedMessage> after;
};

ParsedMessage message_from(const json::Value& value) {
  ParsedMessage message;
  message.reasoning = value.find("reasoning")->as_string();
  if (!value.find("content")->is_null()) message.content = value.find("content")->as_string();
  for (const json::Value& call : value.find("tool_calls")->items())
    message.calls.push_back(
        {call.find("name")->as_string(), call.find("arguments")->as_string(), true});
  if (const json::Value* reason = value.find("finish_reason")) {
    for (const FinishReason candidate :
         {FinishReason::kStop, FinishReason::kLength, FinishReason::kToolCalls})
      if (reason->as_string() == finish_reason_name(candidate)) message.finish_reason = candidate;
  }
  return message;
}

Vector vector_from(const json::Value& value, const json::Value& tool_sets) {
  Vector vector;
  const std::string& start = value.find("start")->as_string();
  vector.options.start = start == "reasoning" ? ParserStart::kReasoning
                         : start == "calls"   ? ParserStart::kCalls
                                              : ParserStart::kContent;
  for (const json::Value& tool : tool_sets.find(value.find("tools")->as_string())->items())
    vector.options.tools.push_back(tool_from_json(tool, 0));
  if (const json::Value* choice = value.find("tool_choice"))
    vector.options.tool_choice.kind =
        choice->as_string() == "none" ? ToolChoice::Kind::kNone : ToolChoice::Kind::kRequired;
  if (const json::Value* parallel = value.find("parallel_tool_calls"))
    vector.options.parallel_tool_calls = parallel->as_bool();
  if (const json::Value* stop = value.find("stop"))
    for (const json::Value& text : stop->items()) vector.options.stop.push_back(text.as_string());
  if (const json::Value* continuation = value.find("continuation"))
    vector.options.continuation = continuation->as_bool();
  vector.raw = value.find("raw")->as_string();
  if (value.find("end")->as_string() == "length") vector.end = OutputEnd::kTokenLimit;
  vector.expect = message_from(*value.find("expect"));
  vector.content_is_null = value.find("expect")->find("content")->is_null();
  for (const json::Value& chunking : value.find("chunkings")->items()) {
    vector.chunkings.emplace_back();
    for (const json::Value& piece : chunking.items())
      vector.chunkings.back().push_back(piece.as_string());
  }
  if (const json::Value* after = value.find("after"))
    for (const json::Value& message : after->items()) vector.after.push_back(message_from(message));
  return vector;
}

void expect_at_least(const ParsedMessage& got, const ParsedMessage& least,
                     const ParsedMessage& whole) {
  const auto between = [](const std::string& text, const std::string& least_text,
                          const std::string& whole_text) {
    EXPECT_TRUE(text.starts_with(least_text)) << text << " / " << least_text;
    EXPECT_TRUE(whole_text.starts_with(text)) << text << " / " << whole_text;
  };
  between(got.reasoning, least.reasoning, whole.reasoning);
  between(got.content, least.content, whole.content);
  ASSERT_GE(got.calls.size(), least.calls.size());
  ASSERT_LE(got.calls.size(), whole.calls.size());
  for (size_t i = 0; i < got.calls.size(); ++i) {
    EXPECT_EQ(got.calls[i].name, whole.calls[i].name);
    between(got.calls[i].arguments, i < least.calls.size() ? least.calls[i].arguments : "",
            whole.calls[i].arguments);
  }
}

void for_each_vector(const std::function<void(const Vector&)>& check) {
  const json::Value file = json::parse(test::read_file(test::golden_path("chat/parse.json")));
  EXPECT_EQ(file.find("cases")->items().size(), 84u);
  for (const json::Value& value : file.find("cases")->items()) {
    SCOPED_TRACE(value.find("name")->as_string());
    check(vector_from(value, *file.find("tool_sets")));
  }
}

TEST(OutputParserVectors, WholeAndInEveryCut) {
  for_each_vector([](const Vector& vector) {
    const ParsedMessage got = parse_in_all_cuts(vector.options, vector.raw, vector.end);
    expect_same(got, vector.expect);
    EXPECT_EQ(got.content_is_null(), vector.content_is_null);
    for (const Pieces& chunking : vector.chunkings)
      expect_same(parse(vector.options, chunking, vector.end), vector.expect);
  });
}

// ---- Tags that are tokens ----

struct TokenPiece {
  std::string text;
  TextOrigin origin;
};

// `raw` as tokens that write every tag with its control token and the rest a character each.
std::vector<TokenPiece> as_tokens(std::string_view raw) {
  std::vector<TokenPiece> pieces;
  while (!raw.empty()) {
    std::string_view marker;
    for (const std::string_view candidate : {kThinkOpen, kThinkClose, kDsml, kEos})
      if (raw.starts_with(candidate)) marker = candidate;
    if (!marker.empty()) {
      pieces.push_back({std::string(marker), TextOrigin::kMarker});
      raw.remove_prefix(marker.size());
      continue;
    }
    size_t size = 1;
    while (size < raw.size() && (static_cast<unsigned char>(raw[size]) & 0xc0) == 0x80) ++size;
    pieces.push_back({std::string(raw.substr(0, size)), TextOrigin::kOrdinary});
    raw.remove_prefix(size);
  }
  return pieces;
}

ParsedMessage parse_tokens(const OutputParserOptions& options,
                           const std::vector<TokenPiece>& pieces,
                           OutputEnd end = OutputEnd::kEndOfTurn) {
  OutputParser parser(options);
  ParsedMessage message;
  for (const TokenPiece& piece : pieces)
    for (const MessageEvent& event : parser.feed(piece.text, piece.origin)) fold(event, message);
  for (const MessageEvent& event : parser.finish(end)) fold(event, message);
  return message;
}

// Neighbouring ordinary tokens in random groups.
std::vector<TokenPiece> random_groups(const std::vector<TokenPiece>& pieces, std::mt19937& random) {
  std::vector<TokenPiece> groups;
  for (const TokenPiece& piece : pieces) {
    const bool ordinary = piece.origin == TextOrigin::kOrdinary;
    if (ordinary && !groups.empty() && groups.back().origin == piece.origin && random() % 4 != 0)
      groups.back().text += piece.text;
    else
      groups.push_back(piece);
  }
  return groups;
}

TEST(OutputParserTokens, VectorsWithTheirTagsAsTokens) {
  for_each_vector([](const Vector& vector) {
    const std::vector<TokenPiece> pieces = as_tokens(vector.raw);
    expect_same(parse_tokens(vector.options, pieces, vector.end), vector.expect);
    std::mt19937 random(1);
    for (int i = 0; i < 50 && !testing::Test::HasFailure(); ++i)
      expect_same(parse_tokens(vector.options, random_groups(pieces, random), vector.end),
                  vector.expect);
  });
}

TEST(OutputParserTokens, TagsSpelledByOrdinaryTokensAreText) {
  OutputParserOptions options =
      with_tools(R"([{"type": "function", "function": {"name": "get_weather"}}])");
  options.start = ParserStart::kReasoning;
  const std::string call = std::string(kDsmlOpen) + " calls>\n" + std::string(kDsmlOpen) +
                           " invoke name=\"get_weather\">\n" + std::string(kDsmlClose) +
                           " invoke>\n" + std::string(kDsmlClose) + " calls>";
  const std::string quoted =
      "<think> opens, </think> closes, " + call + " calls, " + std::string(kEos) + " ends.";
  const std::vector<TokenPiece> pieces = {{quoted, TextOrigin::kOrdinary},
                                          {"</think>", TextOrigin::kMarker},
                                          {quoted, TextOrigin::kOrdinary}};
  std::vector<TokenPiece> characters;
  for (const TokenPiece& piece : pieces) {
    if (piece.origin == TextOrigin::kMarker) {
      characters.push_back(piece);
      continue;
    }
    for (const std::string& character : code_points(piece.text))
      characters.push_back({character, TextOrigin::kOrdinary});
  }
  for (const auto& tokens : {pieces, characters}) {
    const ParsedMessage message = parse_tokens(options, tokens);
    EXPECT_EQ(message.reasoning, quoted);
    EXPECT_EQ(message.content, quoted);
    EXPECT_TRUE(message.calls.empty());
    EXPECT_EQ(message.finish_reason, FinishReason::kStop);
  }
}

TEST(OutputParserTokens, AValueMayQuoteItsOwnCloser) {
  const OutputParserOptions options =
      with_tools(R"([{"type": "function", "function": {"name": "write"}}])");
  const std::string opener = std::string(kDsmlOpen) + " calls>\n" + std::string(kDsmlOpen) +
                             " invoke name=\"write\">\n" + std::string(kDsmlOpen) +
                             " parameter name=\"text\" string=\"true\">";
  const std::string closers = std::string(kDsmlClose) + " parameter>\n" + std::string(kDsmlClose) +
                              " invoke>\n" + std::string(kDsmlClose) + " calls>";
  std::vector<TokenPiece> pieces = as_tokens(opener);
  pieces.push_back({"a" + closers + "b</", TextOrigin::kOrdinary});
  pieces.push_back({"\uff5cDS", TextOrigin::kOrdinary});
  for (TokenPiece& piece : as_tokens(closers)) pieces.push_back(std::move(piece));
  const ParsedMessage message = parse_tokens(options, pieces);
  ASSERT_EQ(message.calls.size(), 1u);
  EXPECT_EQ(json::parse(message.calls[0].arguments).find("text")->as_string(),
            "a" + closers + "b</\uff5cDS");
}

TEST(OutputParserVectors, SendsNoLessThanRequired) {
  int num_checked = 0;
  for_each_vector([&](const Vector& vector) {
    if (vector.after.empty()) return;
    ASSERT_EQ(vector.after.size(), vector.chunkings[0].size());
    OutputParser parser(vector.options);
    ParsedMessage message;
    for (size_t i = 0; i < vector.after.size(); ++i) {
      SCOPED_TRACE("piece " + std::to_string(i) + ": " + vector.chunkings[0][i]);
      for (const MessageEvent& event : parser.feed(vector.chunkings[0][i])) fold(event, message);
      expect_at_least(message, vector.after[i], vector.expect);
    }
    ++num_checked;
  });
  EXPECT_EQ(num_checked, 7);
}

// ---- What goes wrong in the field ----

constexpr const char* kTools = R"([
  {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "array"}}}}},
  {"type": "function", "function": {"name": "write", "parameters": {"type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}}},
  {"type": "function", "function": {"name": "now", "parameters": {"type": "object",
    "properties": {}}}}])";

std::string tag(const std::string& text) { return "<" + std::string(kDsml) + " " + text; }
std::string closer(const std::string& text) { return "</" + std::string(kDsml) + " " + text + ">"; }

std::string parameter(const std::string& name, const std::string& value, bool string = true) {
  return tag("parameter name=\"" + name + "\" string=\"" + (string ? "true" : "false") + "\">") +
         value + closer("parameter") + "\n";
}
std::string invoke(const std::string& name, const std::string& parameters) {
  return tag("invoke name=\"" + name + "\">\n") + parameters + closer("invoke") + "\n";
}
std::string block(const std::string& invokes) {
  return "\n\n" + tag("calls>\n") + invokes + closer("calls");
}

// Feeds the pieces and returns the message after each of them.
std::vector<ParsedMessage> snapshots(const OutputParserOptions& options, const Pieces& pieces) {
  OutputParser parser(options);
  ParsedMessage message;
  std::vector<ParsedMessage> after;
  for (const std::string& piece : pieces) {
    for (const MessageEvent& event : parser.feed(piece)) fold(event, message);
    after.push_back(message);
  }
  return after;
}

// vllm-project/vllm 51914: a misspelt wrapper loses the call.
TEST(OutputParserTraps, MisspeltWrapper) {
  for (const char* name : {"toolcalls>", "tool_calls>", "function_calls>", "calls>"})
    for (const std::string space : {"", " "}) {
      const std::string open = "<" + std::string(kDsml) + space;
      const std::string close = "</" + std::string(kDsml) + space;
      const ParsedMessage message = parse_in_all_cuts(
          with_tools(kTools), open + name + "\n" + open + "invoke name=\"get_weather\">" + open +
                                  "parameter name=\"city\" string=\"true\">Seoul" + close +
                                  "parameter>" + close + "invoke>\n" + close + "tool_calls>");
      ASSERT_EQ(message.calls.size(), 1u) << name;
      EXPECT_EQ(message.calls[0].arguments, "{\"city\": \"Seoul\"}");
      EXPECT_EQ(message.content, "");
    }
}

// vllm-project/vllm 53227: half a closing tag is sent as argument text; a lone "</" has to be sent.
TEST(OutputParserTraps, HalfAClosingTagNeverLeaves) {
  const std::string open = tag("calls>\n") + tag("invoke name=\"get_weather\">\n") +
                           tag("parameter name=\"city\" string=\"true\">");
  const auto after = snapshots(with_tools(kTools),
                               {open, "San Francisco</", std::string(kDsml), " parameter", ">\n"});
  EXPECT_EQ(after[1].calls[0].arguments, "{\"city\": \"San Francisco");
  EXPECT_EQ(after[2].calls[0].arguments, "{\"city\": \"San Francisco");
  EXPECT_EQ(after[3].calls[0].arguments, "{\"city\": \"San Francisco");
  EXPECT_EQ(after[4].calls[0].arguments, "{\"city\": \"San Francisco\"");
  const auto lone = snapshots(with_tools(kTools), {open, "a </", "b"});
  EXPECT_EQ(lone[1].calls[0].arguments, "{\"city\": \"a ");
  EXPECT_EQ(lone[2].calls[0].arguments, "{\"city\": \"a </b");
}

// vllm-project/vllm 48645: without </think> the text of the end token is shown.
TEST(OutputParserTraps, EndTokenTextNeverReachesTheClient) {
  OutputParserOptions options = with_tools(kTools);
  options.start = ParserStart::kReasoning;
  const ParsedMessage open_reasoning = parse_in_all_cuts(options, "thinking" + std::string(kEos));
  EXPECT_EQ(open_reasoning.reasoning, "thinking");
  EXPECT_EQ(open_reasoning.content, "");
  EXPECT_EQ(open_reasoning.finish_reason, FinishReason::kStop);
  const ParsedMessage in_value = parse_in_all_cuts(
      options, "</think>a" + std::string(kEos) + "b" +
                   block(invoke("write", parameter("content", "x" + std::string(kEos) + "y"))));
  EXPECT_EQ(in_value.content, "ab");
  EXPECT_EQ(in_value.calls[0].arguments, "{\"content\": \"xy\"}");
}

// vllm-project/vllm 41240: the string attribute is ignored, wrappers are passed on, the last '<' is
// lost.
TEST(OutputParserTraps, StringAttributeWrapperAndLastLessThan) {
  const OutputParserOptions options = with_tools(kTools);
  EXPECT_EQ(parse_in_all_cuts(options, block(invoke("get_weather", parameter("city", "42"))))
                .calls[0]
                .arguments,
            "{\"city\": \"42\"}");
  EXPECT_EQ(parse_in_all_cuts(options, block(invoke("get_weather", parameter("zip", "42", false))))
                .calls[0]
                .arguments,
            "{\"zip\": 42}");
  EXPECT_EQ(parse_in_all_cuts(
                options,
                block(invoke("get_weather", parameter("arguments", "{\"city\":\"Oslo\"}", false))))
                .calls[0]
                .arguments,
            "{\"city\": \"Oslo\"}");
  EXPECT_EQ(parse_in_all_cuts(options, "2 <").content, "2 <");
}

// sgl-project/sglang 7934: a call must give tool_calls as its reason, also when the model goes on.
TEST(OutputParserTraps, CallsFinishWithToolCalls) {
  const ParsedMessage message = parse_in_all_cuts(with_tools(kTools), block(invoke("now", "\n")));
  EXPECT_EQ(message.finish_reason, FinishReason::kToolCalls);
  EXPECT_EQ(
      parse(with_tools(kTools), {block(invoke("now", "\n"))}, OutputEnd::kTokenLimit).finish_reason,
      FinishReason::kToolCalls);
}

// antirez/ds4 167, ggml-org/llama.cpp 25891: a call inside reasoning is shown as text, or twice.
TEST(OutputParserTraps, CallInsideReasoningIsRealAndShownOnce) {
  OutputParserOptions options = with_tools(kTools);
  options.start = ParserStart::kReasoning;
  for (const char* late : {"", "</think>\n", "\n</think>\n\nDone."}) {
    const ParsedMessage message =
        parse_in_all_cuts(options, "I will look." + block(invoke("now", "\n")) + late);
    EXPECT_EQ(message.reasoning, "I will look.");
    EXPECT_EQ(message.content, "");
    ASSERT_EQ(message.calls.size(), 1u);
  }
}

// vllm-project/vllm 52846: a long string is held until it is closed, or costs quadratic time. The
// bound on looks at a byte holds for every cut and for text that keeps looking like a tag.
TEST(OutputParserTraps, LongValuesStreamInLinearTime) {
  const OutputParserOptions options = with_tools(kTools);
  const std::string open = tag("calls>\n") + tag("invoke name=\"write\">\n");
  const std::string almost_closer = closer("invoke") + "\n";
  struct Case {
    const char* what;
    std::string before, unit, after;
  };
  const std::string content = open + tag("parameter name=\"content\" string=\"true\">");
  for (const Case& c : {
           Case{"plain", content, "abc\n", closer("parameter")},
           Case{"less than", content, "<", closer("parameter")},
           Case{"closers that close nothing", content, almost_closer, closer("parameter")},
           Case{"space behind a closer", content + closer("invoke"), " ",
                "x" + closer("parameter")},
           Case{"space behind the last closer", content + closer("calls"), "\n",
                "x" + closer("parameter")},
           Case{"a name that does not end", tag("calls>\n") + tag("invoke name=\""), "n", "\">"},
           Case{"candidates", "", tag("invoke name=\"write\">\n"), ""},
           Case{"candidates with open values", "",
                tag("invoke name=\"write\">\n") + tag("parameter name=\"a\" string=\"true\">"), ""},
           Case{"a candidate with an open value",
                tag("invoke name=\"write\">\n") + tag("parameter name=\"a\" string=\"true\">"),
                "</think> ", ""},
           Case{"newlines", "x", "\n", "y"},
       }) {
    SCOPED_TRACE(c.what);
    for (const size_t piece_size : {size_t{1}, size_t{4}, size_t{1000}, size_t{1} << 20}) {
      std::string raw = c.before;
      while (raw.size() < 100'000) raw += c.unit;
      raw += c.after;
      OutputParser parser(options);
      for (size_t begin = 0; begin < raw.size(); begin += piece_size)
        parser.feed(std::string_view(raw).substr(begin, piece_size));
      parser.finish(OutputEnd::kEndOfTurn);
      // The literal part of a tag, up to 30 bytes, is looked at again with each piece of the tag,
      // and text that was taken for a call is read twice: constants, whatever the length.
      EXPECT_LE(parser.num_bytes_scanned(), raw.size() * (piece_size < 30 ? 64 : 6)) << piece_size;
    }
  }
  const std::string value(1000, 'v');
  EXPECT_EQ(snapshots(options, {content, value})[1].calls[0].arguments, "{\"content\": \"" + value);
}

// sgl-project/sglang 35563, 31650; vllm-project/vllm 55082: calls and arguments are lost when one
// piece holds more than one step of the parser. Every cut into two pieces has to give the same.
TEST(OutputParserReports, EveryCutIntoTwoPieces) {
  OutputParserOptions options = with_tools(kTools);
  options.start = ParserStart::kReasoning;
  const std::string raw =
      "Look.</think>On it." +
      block(invoke("now", "\n") +
            invoke("get_weather",
                   parameter("city", "K\u00f6ln") + parameter("days", "[1, 2]", false)) +
            invoke("write", parameter("path", "a") + parameter("content", "b < c")));
  const ParsedMessage whole = parse(options, {raw});
  ASSERT_EQ(whole.calls.size(), 3u);
  EXPECT_EQ(whole.calls[1].arguments, "{\"city\": \"K\u00f6ln\", \"days\": [1, 2]}");
  for (size_t cut = 0; cut <= raw.size(); ++cut)
    expect_same(parse(options, {raw.substr(0, cut), raw.substr(cut)}), whole);
}

// vllm-project/vllm 47761: a call that the token limit cuts is reported as tool_calls, the client
// stores broken JSON and every later request fails.
TEST(OutputParserReports, CallCutByTheTokenLimitFinishesWithLength) {
  const OutputParserOptions options = with_tools(kTools);
  const std::string raw =
      block(invoke("write", parameter("path", "a") + parameter("content", "b")));
  for (size_t cut = raw.find("\">\n") + 2; cut < raw.size(); ++cut) {
    const ParsedMessage message =
        parse(options, code_points(raw.substr(0, cut)), OutputEnd::kTokenLimit);
    EXPECT_EQ(message.finish_reason, FinishReason::kLength) << raw.substr(0, cut);
    ASSERT_EQ(message.calls.size(), 1u);
    // Either cut, and marked so, or whole.
    EXPECT_EQ(message.calls[0].complete, message.calls[0].arguments.ends_with("}"));
  }
}

// sgl-project/sglang 39632: a value that is no string is streamed as it looks so far; when it turns
// out to be no JSON, bytes are lost. It has to be held until it is closed.
TEST(OutputParserReports, ValuesThatAreNoStringsAreHeldUntilClosed) {
  const OutputParserOptions options = with_tools(kTools);
  for (const std::string name : {"days", "undeclared"}) {
    const std::string open = tag("calls>\n") + tag("invoke name=\"get_weather\">\n") +
                             tag("parameter name=\"" + name + "\" string=\"false\">");
    const auto after = snapshots(options, {open, "[\"a\", ", "\"b\"", " oops", closer("parameter"),
                                           closer("invoke") + closer("calls")});
    for (int i = 0; i < 4; ++i) EXPECT_EQ(after[i].calls[0].arguments, "") << name;
    EXPECT_EQ(after[5].calls[0].arguments, "{\"" + name + R"(": "[\"a\", \"b\" oops"})");
    EXPECT_NO_THROW(json::parse(after[5].calls[0].arguments));
  }
}

// vllm-project/vllm 14399, 14170: a stop string inside the reasoning ends it, and no answer comes;
// 3672: one that spans pieces is shown in part.
TEST(OutputParserReports, StopStringsCountInContentAlone) {
  OutputParserOptions options = with_tools(kTools);
  options.start = ParserStart::kReasoning;
  options.stop = {"9.8", "\n\n\n", "Observation:"};
  const ParsedMessage message =
      parse_in_all_cuts(options, "9.11 and 9.8\n\n\nso</think>It is 9.Observ 9.8 indeed");
  EXPECT_EQ(message.reasoning, "9.11 and 9.8\n\n\nso");
  EXPECT_EQ(message.content, "It is 9.Observ ");
  EXPECT_EQ(message.stop_string, "9.8");
  EXPECT_EQ(message.finish_reason, FinishReason::kStop);
  EXPECT_EQ(parse_in_all_cuts(options, "</think>a\n\n\n\nb").content, "a");
  const ParsedMessage call = parse_in_all_cuts(
      options, "</think>9." + block(invoke("write", parameter("content", "9.8"))));
  EXPECT_EQ(call.content, "9.");
  EXPECT_EQ(call.calls[0].arguments, "{\"content\": \"9.8\"}");
  options.include_stop_string = true;
  EXPECT_EQ(parse_in_all_cuts(options, "</think>so 9.8 it is").content, "so 9.8");
}

// QwenLM/qwen-code 6249, open-webui/open-webui 22189: a call without parameters sends no arguments
// at all, and clients drop it or cannot parse "".
TEST(OutputParserReports, CallWithoutParametersSendsAnEmptyObject) {
  OutputParser parser(with_tools(kTools));
  int num_deltas = 0;
  for (const MessageEvent& event : parser.feed(block(invoke("now", "\n"))))
    if (const auto* delta = std::get_if<ArgumentsDelta>(&event)) {
      EXPECT_EQ(delta->text, "{}");
      ++num_deltas;
    }
  EXPECT_EQ(num_deltas, 1);
}

// ---- Rules the vectors leave open ----

TEST(OutputParser, TextThatLooksLikeACallIsWholeAndKeepsItsThinkTags) {
  OutputParserOptions options = with_tools(kTools);
  options.start = ParserStart::kReasoning;
  const std::string quote = tag("invoke name=\"write\">");
  const ParsedMessage message =
      parse_in_all_cuts(options, "One writes " + quote + " first.</think>Yes, " + quote + ".");
  EXPECT_EQ(message.reasoning, "One writes " + quote + " first.");
  EXPECT_EQ(message.content, "Yes, " + quote + ".");
  EXPECT_TRUE(message.calls.empty());
}

TEST(OutputParser, BlockAfterQuotedInvokeIsReal) {
  const std::string quote = tag("invoke name=\"write\">");
  const ParsedMessage message =
      parse_in_all_cuts(with_tools(kTools), "Like " + quote + ":" + block(invoke("now", "\n")));
  EXPECT_EQ(message.content, "Like " + quote + ":");
  ASSERT_EQ(message.calls.size(), 1u);
  EXPECT_EQ(message.calls[0].name, "now");
}

TEST(OutputParser, InvokeOutsideABlockNeedsItsOwnCloser) {
  const std::string raw = tag("invoke name=\"get_weather\">\n") + parameter("city", "Rome") +
                          tag("invoke name=\"now\">\n") + closer("invoke") + closer("calls");
  const ParsedMessage message = parse_in_all_cuts(with_tools(kTools), raw);
  EXPECT_EQ(message.content,
            tag("invoke name=\"get_weather\">\n") +
                parameter("city", "Rome").substr(0, parameter("city", "Rome").size() - 1));
  ASSERT_EQ(message.calls.size(), 1u);
  EXPECT_EQ(message.calls[0].name, "now");
}

TEST(OutputParser, BlockInReasoningWithoutACallBecomesContent) {
  OutputParserOptions options = with_tools(kTools);
  options.start = ParserStart::kReasoning;
  const ParsedMessage message = parse_in_all_cuts(options, "Hm." + block("now()\n"));
  EXPECT_EQ(message.reasoning, "Hm.");
  EXPECT_EQ(message.content, tag("calls>\n") + "now()\n" + closer("calls"));
}

TEST(OutputParser, NoMoreIsHeldThanMayBeATag) {
  const std::string marker(kDsml);
  OutputParserOptions options = with_tools(kTools);
  for (const auto& [text, held] : std::vector<std::pair<std::string, std::string>>{
           {"a <b", ""},
           {"a </", "</"},
           {"a </t", "</t"},
           {"a </x", ""},
           {"a <t", ""},  // content has begun: <think> would be text
           {"a <" + marker + " inv", "<" + marker + " inv"},
           {"a <" + marker + " par", ""},
           {"a </" + marker, ""},
           {"a <" + marker + " invoke name=\"wri", "<" + marker + " invoke name=\"wri"},
           {"a <" + marker + " invoke name=\"wra", ""},  // no tool begins so
           {"a\n\n", "\n\n"},
           {"a \xe2\x82", "\xe2\x82"}}) {
    OutputParser parser(options);
    ParsedMessage message;
    for (const MessageEvent& event : parser.feed(text)) fold(event, message);
    EXPECT_EQ(message.content + held, text);
  }
}

TEST(OutputParser, FirstCallAloneStopsAsSoonAsItIsComplete) {
  OutputParserOptions options = with_tools(kTools);
  options.parallel_tool_calls = false;
  OutputParser parser(options);
  parser.feed("\n\n" + tag("calls>\n") + tag("invoke name=\"now\">\n") + closer("invok"));
  EXPECT_FALSE(parser.wants_stop());
  OutputParser complete(options);
  complete.feed("\n\n" + tag("calls>\n") + tag("invoke name=\"now\">\n") + closer("invoke"));
  EXPECT_TRUE(complete.wants_stop());
}

TEST(OutputParser, ReasoningIsPastWithItsEnd) {
  OutputParserOptions options = with_tools(kTools);
  options.start = ParserStart::kReasoning;
  OutputParser parser(options);
  parser.feed("a</thi");
  EXPECT_FALSE(parser.past_reasoning());
  parser.feed("nk>");
  EXPECT_TRUE(parser.past_reasoning());
}

TEST(OutputParser, ConversionCanBeSwitchedOff) {
  OutputParserOptions options = with_tools(kTools);
  const std::string raw = block(invoke("get_weather", parameter("days", "[1]")));
  EXPECT_EQ(parse(options, {raw}).calls[0].arguments, "{\"days\": [1]}");
  options.convert_by_schema = false;
  EXPECT_EQ(parse(options, {raw}).calls[0].arguments, "{\"days\": \"[1]\"}");
}

}  // namespace
}  // namespace onecard::text
