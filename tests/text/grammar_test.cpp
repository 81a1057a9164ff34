// Constrained decoding against an independent validator: whatever random choices among allowed
// tokens write is valid, and every random valid instance can be written. The masks themselves are
// checked against following each token byte by byte.
#include "text/grammar/grammar.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "base/error.h"
#include "schema_validator.h"
#include "support/files.h"
#include "text/chat_encoder.h"
#include "text/chat_json.h"
#include "text/chat_tokens.h"
#include "text/grammar/tokenizer_trie.h"
#include "text/message_fold.h"
#include "text/output_parser.h"
#include "text/python_json.h"
#include "tokenizers.h"

namespace onecard::text {
namespace {

using json::Value;

// All bytes, what JSON and markup are made of in pieces that cross their borders, whole tags, and
// tokens that no text may hold.
struct Vocabulary {
  std::vector<std::string> tokens;
  int32_t end_id = 0;
  std::shared_ptr<const TokenTrie> trie;
};

const Vocabulary& vocabulary() {
  static const Vocabulary vocabulary = [] {
    Vocabulary v;
    for (int byte = 0; byte < 256; ++byte) v.tokens.emplace_back(1, char(byte));
    const std::string marker(kDsml);
    for (const std::string& token : std::vector<std::string>{"\", \"",
                                                             "\": ",
                                                             "\": \"",
                                                             "{\"",
                                                             "\"}",
                                                             "\"]",
                                                             "]}",
                                                             "}}",
                                                             ", ",
                                                             ": ",
                                                             "[",
                                                             "[]",
                                                             "{}",
                                                             "\"\"",
                                                             "true",
                                                             "false",
                                                             "null",
                                                             "tr",
                                                             "ue",
                                                             "12",
                                                             "000",
                                                             "-1",
                                                             "0.",
                                                             ".5",
                                                             "e1",
                                                             "abc",
                                                             "a\"",
                                                             "\"a",
                                                             "\\n",
                                                             "\\u00",
                                                             "\\\"",
                                                             "\u00e9",
                                                             "\u4e2d",
                                                             "\U0001f600",
                                                             "\xe4\xb8",
                                                             "\xf0\x9f",
                                                             "\x98\x80",
                                                             marker,
                                                             "<" + marker,
                                                             "</" + marker,
                                                             " calls",
                                                             " invoke",
                                                             " invoke name=\"",
                                                             " parameter",
                                                             " parameter name=\"",
                                                             " string=\"",
                                                             "\">",
                                                             "true\">",
                                                             "\">\n",
                                                             ">\n",
                                                             "\n</",
                                                             "\n<",
                                                             "</",
                                                             std::string(kThinkClose),
                                                             std::string(kThinkOpen),
                                                             "\n\n",
                                                             "get",
                                                             "_weather",
                                                             "city",
                                                             "Paris",
                                                             "x</",
                                                             "red",
                                                             "fixed"})
      v.tokens.push_back(token);
    v.tokens.emplace_back();  // never to be written
    v.end_id = int32_t(v.tokens.size());
    v.tokens.emplace_back(kEos);
    std::vector<std::string_view> views(v.tokens.begin(), v.tokens.end());
    v.trie = std::make_shared<const TokenTrie>(views, std::span(&v.end_id, 1));
    return v;
  }();
  return vocabulary;
}

std::vector<int32_t> allowed_tokens(const GrammarState& state) {
  std::vector<uint64_t> mask(vocabulary().trie->mask_words(), ~uint64_t{0});
  state.fill_mask(mask);
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < vocabulary().trie->vocab_size(); ++id)
    if (mask[size_t(id) / 64] >> (id % 64) & 1) ids.push_back(id);
  return ids;
}

// Random choices among the allowed tokens; after a while those that close something. Nothing when
// the text does not end in time.
std::optional<std::string> random_walk(GrammarState state, std::mt19937& random) {
  std::string text;
  for (int step = 0; step < 600; ++step) {
    const std::vector<int32_t> ids = allowed_tokens(state);
    if (ids.empty()) {
      ADD_FAILURE() << "no token is allowed behind " << text;
      return std::nullopt;
    }
    int32_t id = ids[random() % ids.size()];
    if (step > 20) {
      for (int tries = 0; tries < 40; ++tries) {
        const std::string& token = vocabulary().tokens[size_t(id)];
        if (id == vocabulary().end_id ||
            std::string("\"]},\n<0").find(token[0]) != std::string::npos)
          break;
        id = ids[random() % ids.size()];
      }
    }
    if (!state.accept_token(id)) {
      ADD_FAILURE() << "token " << id << " was allowed behind " << text;
      return std::nullopt;
    }
    if (id == vocabulary().end_id) return text;
    text += vocabulary().tokens[size_t(id)];
  }
  return std::nullopt;
}

GrammarState state_of(const GrammarRequest& request) {
  return GrammarState(Grammar::compile(request), vocabulary().trie);
}

GrammarRequest schema_request(const Value& schema) {
  GrammarRequest request;
  request.response_format.kind = ResponseFormat::Kind::kJsonSchema;
  request.response_format.schema = schema;
  return request;
}

GrammarRequest schema_request(const std::string& schema) {
  return schema_request(json::parse(schema));
}

bool writes(const GrammarRequest& request, const std::string& text) {
  GrammarState state = state_of(request);
  return state.accept(text) && state.is_complete();
}

// Writes the text in the longest tokens there are, each of which has to be allowed.
void expect_writable(GrammarState state, const std::string& text) {
  for (size_t begin = 0; begin < text.size();) {
    int32_t longest = -1;
    for (int32_t id = 0; id < vocabulary().trie->vocab_size(); ++id) {
      const std::string& token = vocabulary().tokens[size_t(id)];
      if (id != vocabulary().end_id && !token.empty() &&
          text.compare(begin, token.size(), token) == 0 &&
          (longest < 0 || token.size() > vocabulary().tokens[size_t(longest)].size()))
        longest = id;
    }
    ASSERT_GE(longest, 0);
    const std::vector<int32_t> ids = allowed_tokens(state);
    ASSERT_TRUE(std::find(ids.begin(), ids.end(), longest) != ids.end())
        << vocabulary().tokens[size_t(longest)] << " at " << begin << " of " << text;
    ASSERT_TRUE(state.accept_token(longest));
    begin += vocabulary().tokens[size_t(longest)].size();
  }
  EXPECT_TRUE(state.is_complete()) << text;
  EXPECT_TRUE(state.accept_token(vocabulary().end_id));
}

void check_schema(const Value& schema, std::mt19937& random, int* num_finished = nullptr) {
  SCOPED_TRACE(json::dump(schema));
  std::optional<GrammarState> state;
  try {
    state.emplace(state_of(schema_request(schema)));
  } catch (const Error& error) {
    // A random schema may have bounds that exclude everything.
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    return;
  }
  for (int i = 0; i < 6; ++i) {
    const auto text = random_walk(*state, random);
    if (!text) continue;
    if (num_finished) ++*num_finished;
    try {
      EXPECT_TRUE(test::is_valid(json::parse(*text), schema, schema)) << *text;
    } catch (const Error& error) {
      ADD_FAILURE() << error.what() << ": " << *text;
    }
  }
  for (int i = 0; i < 6; ++i) {
    const Value instance = test::random_instance(schema, schema, random);
    if (!test::is_valid(instance, schema, schema)) {
      ADD_FAILURE() << "the generator made " << json::dump(instance);
      continue;
    }
    expect_writable(*state, python_dumps(instance));
  }
}

void expect_refused(const std::string& schema, ErrorCode code, const std::string& part) {
  try {
    Grammar::compile(schema_request(schema));
    ADD_FAILURE() << schema;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(GrammarSchema, RandomSchemasAgreeWithTheValidator) {
  std::mt19937 random(20251130);
  int num_finished = 0;
  for (int i = 0; i < 150 && !testing::Test::HasFailure(); ++i)
    check_schema(test::random_schema(random), random, &num_finished);
  EXPECT_GT(num_finished, 500);
}

// Against the Python package jsonschema: what it says of texts near the border of a schema.
TEST(GrammarSchema, AgreesWithJsonschemaAtTheBorder) {
  const Value file = json::parse(test::read_file(test::golden_path("text/schemas.json")));
  EXPECT_EQ(file.find("cases")->items().size(), 44u);
  for (const Value& schema_case : file.find("cases")->items()) {
    const Value& schema = *schema_case.find("schema");
    SCOPED_TRACE(json::dump(schema));
    const GrammarState start = state_of(schema_request(schema));
    for (const char* verdict : {"valid", "invalid"})
      for (const Value& text : schema_case.find(verdict)->items()) {
        GrammarState state = start;
        EXPECT_EQ(state.accept(text.as_string()) && state.is_complete(),
                  std::string_view(verdict) == "valid")
            << text.as_string();
      }
    for (const Value& text : schema_case.find("valid")->items())
      expect_writable(start, text.as_string());
    std::mt19937 random(17);
    for (int i = 0; i < 20; ++i)
      if (const auto text = random_walk(start, random)) {
        EXPECT_TRUE(test::is_valid(json::parse(*text), schema, schema)) << *text;
      }
  }
}

struct StringCase {
  const char* keyword;
  const char* value;
  std::vector<const char*> accepted, refused;
};

// Details of ECMA-262, and the formats for which there is no golden.
TEST(GrammarSchema, PatternsAndFormats) {
  const std::vector<StringCase> cases = {
      {"pattern", "^a$", {"a"}, {"a\n", "\na", "aa"}},
      {"pattern", "^.$", {"a", "\t", "\U0001f600"}, {"\n", "\r", "\u2028", "", "ab"}},
      {"pattern", "^\\d$", {"7"}, {"\u0663", "a"}},
      {"pattern", "^\\w$", {"a", "_"}, {"\u00e9", "-"}},
      {"pattern", "^\\s$", {" ", "\u00a0", "\ufeff", "\u2029"}, {"\u200b", "x"}},
      {"pattern", "^[^]$", {"\n", "a"}, {"", "ab"}},
      {"pattern", "^[]|b$", {"b", "ab"}, {"", "a"}},
      {"pattern", "^[a\\-z]+$", {"a-z"}, {"b"}},
      {"pattern", "^[a-]+$", {"a-"}, {"b"}},
      {"pattern", "^[\\w-]+$", {"a-b"}, {"a.b"}},
      {"pattern",
       "^\\u{1F600}\\ud83d\\ude00\\u0041\\x42\\cJ$",
       {"\U0001f600\U0001f600AB\n"},
       {"\U0001f600AB\n"}},
      {"pattern", "^a{,3}x{$", {"a{,3}x{"}, {"aaax{"}},
      {"pattern", "^a+?b*?(?<n>c)??$", {"a", "aabbc"}, {"b", "acc"}},
      {"pattern", "(^a|b)c", {"ac", "xbc", "acx"}, {"xac", "a"}},
      {"pattern", "$^", {""}, {"a"}},
      {"pattern", "x^", {}, {"x", "xx"}},
      {"pattern", "^(?:a{2,3}){2}$", {"aaaa", "aaaaaa"}, {"aaa", "aaaaaaa"}},
      {"pattern", "", {"", "anything"}, {}},
      {"format",
       "duration",
       {"P1Y", "P1Y2M3D", "P2MT1H", "PT1H2M3S", "PT0S", "P52W"},
       {"P", "PT", "P1", "1Y", "P1Y3D", "PT1H3S", "P1M1Y", "P1W1D", "P1.5D", "P1H", "p1y"}},
      {"format",
       "email",
       {"a@b", "a.b+c@d-e.f", "!#$%&'*+/=?^_`{|}~-@x.org"},
       {"a", "@b", "a@", "a.@b", ".a@b", "a..b@c", "a b@c", "a@b@c", "a@-b", "\"a\"@b"}},
  };
  for (const StringCase& c : cases) {
    const Value schema =
        Value::object({{"type", Value::string("string")}, {c.keyword, Value::string(c.value)}});
    SCOPED_TRACE(json::dump(schema));
    if (c.accepted.empty()) {
      expect_refused(json::dump(schema), ErrorCode::kInvalidArgument, "no finite instance");
      continue;
    }
    const GrammarRequest request = schema_request(schema);
    for (const char* text : c.accepted)
      EXPECT_TRUE(writes(request, python_dumps(Value::string(text)))) << text;
    for (const char* text : c.refused)
      EXPECT_FALSE(writes(request, python_dumps(Value::string(text)))) << text;
  }
}

TEST(GrammarSchema, LengthsAreOfCharactersHoweverWritten) {
  const GrammarRequest request =
      schema_request(R"({"type": "string", "minLength": 2, "maxLength": 3})");
  for (const char* text : {R"("ab")", R"("\u4e2d\ud83d\ude00")", R"("\"\\\n")", "\"\u4e2d\u4e2d\"",
                           "\"\U0001f600<</\"", "\"</t\""})
    EXPECT_TRUE(writes(request, text) == (std::string_view(text).find("<</") == std::string::npos))
        << text;
  for (const char* text : {R"("a")", R"("abcd")", R"("\ud83d\ude00")", "\"\U0001f600\"", R"("")"})
    EXPECT_FALSE(writes(request, text)) << text;
}

// What a length costs does not depend on it.
TEST(GrammarSchema, LengthsMayBeLong) {
  GrammarRequest request = schema_request(R"({"type": "string", "minLength": 100000,
      "maxLength": 900000000})");
  request.limits.max_nodes = 2000;
  GrammarState state = state_of(request);
  EXPECT_TRUE(state.accept("\"" + std::string(99'999, 'x')));
  EXPECT_FALSE(state.accept("\""));
  EXPECT_TRUE(state.accept("<\""));
  EXPECT_TRUE(state.is_complete());
}

// Exponential or long patterns end in an error, and soon.
TEST(GrammarSchema, PatternsAreBounded) {
  const std::string many = "(?:a|b)*a(?:a|b){20}";
  for (const std::string& pattern :
       {many, std::string("((((a{1,999}){1,999}){1,999}){1,999})"), std::string("a{10001}"),
        std::string(200, '(') + std::string(200, ')')})
    expect_refused(json::dump(Value::object({{"type", Value::string("string")},
                                             {"pattern", Value::string("^" + pattern + "$")}})),
                   ErrorCode::kResourceExhausted, "schema: ");
}

TEST(GrammarSchema, RecursiveSchemas) {
  std::mt19937 random(7);
  for (const char* text : {
           R"({"type": "object", "properties": {"value": {"type": "integer"},
               "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
               "required": ["value", "next"], "additionalProperties": false})",
           R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
               "name": {"type": "string"}, "children": {"type": "array", "items":
               {"$ref": "#/$defs/tree"}}}, "required": ["name", "children"],
               "additionalProperties": false}}})",
           R"({"type": "object", "additionalProperties": {"type": ["integer", "null"]}})",
           R"({"type": "array"})", R"({"type": "object"})", R"({})", R"(true)"})
    check_schema(json::parse(text), random);
}

TEST(GrammarSchema, JsonObject) {
  GrammarRequest request;
  request.response_format.kind = ResponseFormat::Kind::kJsonObject;
  const Value schema = json::parse(R"({"type": "object"})");
  std::mt19937 random(3);
  int num_finished = 0;
  for (int i = 0; i < 40; ++i)
    if (const auto text = random_walk(state_of(request), random)) {
      ++num_finished;
      EXPECT_TRUE(json::parse(*text).is_object()) << *text;
    }
  EXPECT_GT(num_finished, 20);
  for (int i = 0; i < 40; ++i)
    expect_writable(state_of(request), python_dumps(test::random_instance(schema, schema, random)));
}

// The mask says of every token what following its bytes says.
TEST(GrammarMask, IsWhatFollowingEachTokenSays) {
  std::mt19937 random(11);
  std::vector<GrammarRequest> requests;
  for (int i = 0; i < 30; ++i) requests.push_back(schema_request(test::random_schema(random)));
  GrammarRequest tools;
  tools.tools.push_back({"get_weather", "", json::parse(R"({"type": "object", "properties":
      {"city": {"type": "string", "minLength": 1, "maxLength": 4},
       "code": {"type": "string", "pattern": "^<*[a-c]+$", "maxLength": 5},
       "days": {"type": ["integer", "string"]}}})"),
                         true});
  tools.tools.push_back({"now", "", json::parse(R"({"type": "object"})"), false});
  for (const ParserStart start :
       {ParserStart::kContent, ParserStart::kReasoning, ParserStart::kCalls})
    for (const ToolChoice::Kind kind : {ToolChoice::Kind::kAuto, ToolChoice::Kind::kRequired}) {
      tools.start = start;
      tools.tool_choice.kind = kind;
      requests.push_back(tools);
    }
  for (const GrammarRequest& request : requests) {
    std::optional<GrammarState> state;
    try {
      state.emplace(state_of(request));
    } catch (const Error&) {
      continue;
    }
    for (int step = 0; step < 60; ++step) {
      const std::vector<int32_t> ids = allowed_tokens(*state);
      std::vector<int32_t> expected;
      for (int32_t id = 0; id < vocabulary().trie->vocab_size(); ++id) {
        GrammarState copy = *state;
        if (copy.accept_token(id)) expected.push_back(id);
      }
      ASSERT_EQ(ids, expected) << "step " << step;
      const int32_t id = ids[random() % ids.size()];
      if (id == vocabulary().end_id) break;
      ASSERT_TRUE(state->accept_token(id));
    }
  }
}

TEST(GrammarMask, ClearsOnlyWhatWasAllowed) {
  GrammarState state = state_of(schema_request(R"({"type": "boolean"})"));
  std::vector<uint64_t> mask(vocabulary().trie->mask_words(), 0);
  mask['a' / 64] = uint64_t{1} << ('a' % 64);
  EXPECT_TRUE(state.fill_mask(mask));
  EXPECT_EQ(mask['a' / 64], 0u);
  EXPECT_FALSE(state.fill_mask(mask));
  std::vector<uint64_t> short_mask(1);
  EXPECT_THROW(state.fill_mask(short_mask), Error);
}

TEST(GrammarMask, NothingFollowsTheEnd) {
  GrammarState state = state_of(schema_request(R"({"const": 1})"));
  EXPECT_FALSE(state.accept_token(vocabulary().end_id));
  EXPECT_TRUE(state.accept("1"));
  GrammarState copy = state;
  EXPECT_TRUE(state.accept_token(vocabulary().end_id));
  EXPECT_TRUE(allowed_tokens(state).empty());
  EXPECT_FALSE(state.accept_token(vocabulary().end_id));
  EXPECT_FALSE(state.accept("1"));
  EXPECT_TRUE(copy.is_complete());  // copies go their own way
  EXPECT_EQ(allowed_tokens(copy), std::vector<int32_t>{vocabulary().end_id});
}

TEST(GrammarSchema, RefusedBytesLeaveTheStateAsItWas) {
  GrammarState state = state_of(schema_request(R"({"type": "array", "items": {"type": "null"}})"));
  EXPECT_FALSE(state.accept("[null, x"));
  EXPECT_TRUE(state.accept("[null]"));
  EXPECT_TRUE(state.is_complete());
}

TEST(GrammarSchema, RangesOfIntegersAreExact) {
  for (const auto& [low, high] : std::vector<std::pair<int, int>>{
           {0, 0}, {0, 9}, {7, 123}, {-45, 45}, {-123, -7}, {99, 101}, {-1, 1000}, {10, 10}}) {
    const GrammarRequest request =
        schema_request("{\"type\": \"integer\", \"minimum\": " + std::to_string(low) +
                       ", \"maximum\": " + std::to_string(high) + "}");
    const GrammarState start = state_of(request);
    for (int n = -1300; n <= 1300; ++n) {
      GrammarState state = start;
      EXPECT_EQ(state.accept(std::to_string(n)) && state.is_complete(), low <= n && n <= high)
          << n << " in " << low << ".." << high;
    }
  }
}

TEST(GrammarSchema, TextThatTheParserWouldTakeForATagIsEscaped) {
  const GrammarRequest request = schema_request(R"({"type": "string"})");
  EXPECT_FALSE(writes(request, "\"a</think>\""));
  EXPECT_FALSE(writes(request, "\"<" + std::string(kDsml) + "\""));
  EXPECT_TRUE(writes(request, "\"a<\\/think>\""));
  EXPECT_TRUE(writes(request, "\"a</thin k>\""));
  const GrammarRequest patterned = schema_request(R"({"type": "string", "pattern": "k"})");
  EXPECT_FALSE(writes(patterned, "\"a</think>\""));
  EXPECT_TRUE(writes(patterned, "\"a<\\/think>\""));
  EXPECT_TRUE(writes(patterned, "\"a\\u003c/think>\""));
}

TEST(GrammarSchema, StringsAreWellFormed) {
  const GrammarRequest request = schema_request(R"({"type": "string"})");
  EXPECT_TRUE(writes(request, "\"\\ud83d\\ude00\\u00e9\""));
  EXPECT_FALSE(writes(request, "\"\\ud83d\""));
  EXPECT_FALSE(writes(request, "\"\\ude00\""));
  EXPECT_FALSE(writes(request, "\"\xe9\""));
  EXPECT_FALSE(writes(request, "\"\n\""));
  EXPECT_FALSE(writes(request, "\"\xed\xa0\x80\""));
}

TEST(GrammarSchema, RefusesByName) {
  expect_refused(R"({"type": "object", "properties": {"a": {"allOf": [{}]}}})",
                 ErrorCode::kUnsupported,
                 "response_format.json_schema.schema.properties.a: allOf is not supported");
  for (const char* keyword : {"oneOf", "not", "if", "patternProperties", "prefixItems", "contains",
                              "propertyNames", "minProperties", "unevaluatedProperties"})
    expect_refused((std::string("{\"") + keyword + "\": 1}"), ErrorCode::kUnsupported, keyword);
  expect_refused(R"({"$ref": "http://x/y"})", ErrorCode::kUnsupported, "http://x/y");
  expect_refused(R"({"$ref": "#/$defs/no"})", ErrorCode::kInvalidArgument, "leads to nothing");
  expect_refused(R"({"type": "thing"})", ErrorCode::kInvalidArgument, "thing");
  expect_refused(R"({"$ref": "#"})", ErrorCode::kInvalidArgument, "leads back to itself");
  expect_refused(R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})", ErrorCode::kInvalidArgument,
                 "leads back to itself");
  expect_refused(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
                 ErrorCode::kInvalidArgument, "no finite instance");
  expect_refused(R"({"type": "integer", "minimum": 3, "maximum": 2})", ErrorCode::kInvalidArgument,
                 "bounds");
  expect_refused(R"({"type": "number", "maximum": 1e40})", ErrorCode::kUnsupported, "maximum");
  expect_refused(R"({"type": "number", "multipleOf": 0.123456})", ErrorCode::kUnsupported,
                 "multipleOf");
  expect_refused(R"({"type": "number", "multipleOf": 0})", ErrorCode::kInvalidArgument,
                 "multipleOf");
  expect_refused(R"({"type": "string", "format": "uri"})", ErrorCode::kUnsupported,
                 "format \"uri\"");
  expect_refused(R"({"type": "object", "properties": {"a": {"pattern": "(?=a)b"
}
}
})",
                 ErrorCode::kUnsupported,
                 "schema.properties.a: pattern: look-around is not supported");
  expect_refused(R"({"type": "string", "pattern": "(a)\\1"})", ErrorCode::kUnsupported,
                 "back-reference");
  expect_refused(R"({"type": "string", "pattern": "a\\b"})", ErrorCode::kUnsupported, "\\b");
  expect_refused(R"({"type": "string", "pattern": "(a"})", ErrorCode::kInvalidArgument, "'('");
  expect_refused(R"({"type": "string", "pattern": "^a$", "minLength": 2})",
                 ErrorCode::kInvalidArgument, "no finite instance");
  expect_refused(R"({"type": "string", "pattern": "^a{5}$", "maxLength": 4})",
                 ErrorCode::kInvalidArgument, "no finite instance");
  expect_refused(R"({"enum": ["a", "bb"], "minLength": 2})", ErrorCode::kUnsupported,
                 "minLength next to enum");
  expect_refused(R"({"type": "object", "properties": {}, "required": ["a"],
      "additionalProperties": false})",
                 ErrorCode::kInvalidArgument, "additionalProperties");
  expect_refused(R"({"type": "array", "maxItems": 99999999})", ErrorCode::kResourceExhausted,
                 "nodes");
  expect_refused(R"({"type": "array", "maxItems": 1e12})", ErrorCode::kResourceExhausted,
                 "maxItems");
  expect_refused(R"({"type": "array", "maxItems": 90000, "minItems": 90000})",
                 ErrorCode::kResourceExhausted, "nodes");
  expect_refused(R"({"type": "string", "minLength": -1})", ErrorCode::kInvalidArgument,
                 "minLength");
  expect_refused(R"({"anyOf": [], "type": "string"})", ErrorCode::kUnsupported, "type next to");
  expect_refused("false", ErrorCode::kInvalidArgument, "allows nothing");
}

TEST(GrammarSchema, DeepAndWideSchemasAreBounded) {
  std::string deep = "{}";
  for (int i = 0; i < 60; ++i) deep = "{\"items\": " + deep + "}";
  expect_refused(deep, ErrorCode::kResourceExhausted, "nested deeper");
  // Each definition offers the next one twice: 2^30 ways, if they were written out.
  std::string wide = "{\"$ref\": \"#/$defs/0\", \"$defs\": {";
  for (int i = 0; i < 30; ++i) {
    const std::string next = "{\"$ref\": \"#/$defs/" + std::to_string(i + 1) + "\"}";
    wide += "\"" + std::to_string(i) + "\": {\"anyOf\": [" + next + ", " + next + "]}, ";
  }
  wide += "\"30\": {\"type\": \"null\"}}}";
  GrammarRequest request = schema_request(wide);
  request.limits.max_schema_depth = 100;
  EXPECT_TRUE(writes(request, "null"));
  GrammarRequest tools;
  tools.tools.push_back({"f", "",
                         json::parse("{\"type\": \"object\", \"properties\": {\"a\": "
                                     "{\"$ref\": \"#/$defs/0\"}}, " +
                                     wide.substr(wide.find("\"$defs\""))),
                         true});
  tools.limits.max_schema_depth = 100;
  EXPECT_THROW(Grammar::compile(tools), Error);
}

// Every level of nesting can be read in two ways.
TEST(GrammarSchema, ExponentialAmbiguityEndsTheSequence) {
  const GrammarState start = state_of(schema_request(R"({"$ref": "#/$defs/a", "$defs": {"a":
      {"anyOf": [
      {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["x"]},
      {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}, "y": {}}, "required": ["x"]},
      {"type": "null"}]}}})"));
  GrammarState state = start;
  EXPECT_TRUE(state.accept("{\"x\": {\"x\": {\"x\": null}}, \"y\": 1}"));
  EXPECT_TRUE(state.is_complete());
  GrammarState deep = start;
  try {
    for (int i = 0; i < 40; ++i) deep.accept("{\"x\": ");
    ADD_FAILURE() << "2^40 ways were followed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  }
}

// ---- What goes wrong in the field ----

// ggml-org/llama.cpp 25746, 25923, 26596: lengths from 2,000 on and objects without properties make
// the grammar of all tools unusable, and every call fails.
TEST(GrammarReports, LongLengthsAndEmptyObjectsInManyTools) {
  GrammarRequest request;
  request.tool_choice.kind = ToolChoice::Kind::kRequired;
  for (int i = 0; i < 60; ++i)
    request.tools.push_back({"tool_" + std::to_string(i), "",
                             json::parse(R"({"type": "object", "properties": {
        "o": {"type": "object", "properties": {"text": {"type": "string", "maxLength": 65536},
          "id": {"type": "string", "pattern": "\\S"}}, "required": ["text"]},
        "none": {"type": "object", "properties": {}}}, "additionalProperties": false})"),
                             true});
  const std::string marker(kDsml);
  EXPECT_TRUE(writes(
      request, "\n\n<" + marker + " calls>\n<" + marker + " invoke name=\"tool_59\">\n<" + marker +
                   " parameter name=\"o\" string=\"false\">{\"text\": \"" +
                   std::string(65536, '<') + "\", \"id\": \"x\"}</" + marker + " parameter>\n<" +
                   marker + " parameter name=\"none\" string=\"false\">{}</" + marker +
                   " parameter>\n</" + marker + " invoke>\n</" + marker + " calls>"));
}

// vllm-project/vllm 45592: a pattern makes the lengths next to it count for nothing.
TEST(GrammarReports, LengthsCountNextToAPattern) {
  const GrammarRequest request = schema_request(
      R"({"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2,
          "maxLength": 4}})");
  EXPECT_TRUE(writes(request, R"(["ab", "abcd"])"));
  EXPECT_FALSE(writes(request, R"(["a"])"));
  EXPECT_FALSE(writes(request, R"(["abcde"])"));
}

// vllm-project/vllm 52011: a number under an empty schema takes digits without end.
TEST(GrammarReports, NumbersEnd) {
  for (const char* schema : {"{}", R"({"type": "number"})", R"({"type": "integer"})",
                             R"({"type": "number", "minimum": 0})", R"({"multipleOf": 3})"}) {
    const GrammarState start = state_of(schema_request(schema));
    for (const char* begin : {"1", "0.1", "1e1"}) {
      GrammarState state = start;
      if (!state.accept(begin)) continue;
      int num_digits = 0;
      while (state.accept("1")) ASSERT_LT(++num_digits, 100) << schema;
      EXPECT_EQ(allowed_tokens(state).empty(), false);
    }
  }
}

// ggml-org/llama.cpp 19051: a pattern that is none lets everything through.
TEST(GrammarReports, WhatCannotBeCompiledIsRefused) {
  expect_refused(R"({"type": "string", "pattern": "^hello(there$"})", ErrorCode::kInvalidArgument,
                 "pattern");
  expect_refused(R"({"type": "string", "pattern": "^[z-a]$"})", ErrorCode::kInvalidArgument,
                 "pattern");
}

// vllm-project/vllm 18255, 12619: the grammar sets in at the first token, and the model cannot
// think.
TEST(GrammarReports, ReasoningIsFreeInFrontOfAFormat) {
  GrammarRequest request = schema_request(R"({"type": "boolean"})");
  request.start = ParserStart::kReasoning;
  EXPECT_TRUE(writes(request, "true or {false}? Hm.</think>true"));
  EXPECT_FALSE(writes(request, "true"));
  EXPECT_FALSE(writes(request, "Hm.</think>Hm"));
}

// ---- Calls ----

constexpr const char* kStrictSchema = R"({"type": "object", "properties": {
    "city": {"type": "string"}, "unit": {"enum": ["c", "f", 3]},
    "days": {"type": ["integer", "null"]}, "code": {"type": "string", "minLength": 2, "maxLength": 3},
    "id": {"type": "string", "pattern": "^[a-c]{2,5}$", "maxLength": 5},
    "note": {"type": "string", "maxLength": 2}, "price": {"type": "number", "multipleOf": 0.25},
    "when": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "boolean"}}]},
    "any": {}}, "required": ["city", "unit", "any"], "additionalProperties": false})";

GrammarRequest tool_request(ToolChoice::Kind kind) {
  GrammarRequest request;
  request.tools.push_back({"get_weather", "", json::parse(kStrictSchema), true});
  request.tools.push_back({"now", "", json::parse(R"({"type": "object", "properties": {},
      "additionalProperties": false})"),
                           true});
  request.tool_choice.kind = kind;
  return request;
}

ParsedMessage parse(const GrammarRequest& request, const std::string& raw) {
  OutputParserOptions options;
  options.start = request.start;
  options.tools = request.tools;
  options.tool_choice = request.tool_choice;
  OutputParser parser(options);
  ParsedMessage message;
  for (const MessageEvent& event : parser.feed(raw)) fold(event, message);
  for (const MessageEvent& event : parser.finish(OutputEnd::kEndOfTurn)) fold(event, message);
  return message;
}

TEST(GrammarCalls, RandomCallsParseToValidArguments) {
  std::mt19937 random(5);
  const Value schema = json::parse(kStrictSchema);
  int num_calls = 0;
  for (int i = 0; i < 120; ++i) {
    const GrammarRequest request = tool_request(ToolChoice::Kind::kRequired);
    const auto text = random_walk(state_of(request), random);
    if (!text) continue;
    const ParsedMessage message = parse(request, *text);
    EXPECT_EQ(message.content, "");
    EXPECT_EQ(message.finish_reason, FinishReason::kToolCalls);
    ASSERT_GE(message.calls.size(), 1u) << *text;
    for (const ParsedCall& call : message.calls) {
      ++num_calls;
      const Value arguments = json::parse(call.arguments);
      if (call.name == "now")
        EXPECT_EQ(call.arguments, "{}");
      else
        EXPECT_TRUE(test::is_valid(arguments, schema, schema)) << call.arguments << " of " << *text;
    }
  }
  EXPECT_GT(num_calls, 60);
}

// What the chat encoder prints for a call is what a model has been trained to write.
TEST(GrammarCalls, EveryRenderedCallCanBeWritten) {
  std::mt19937 random(9);
  const Value schema = json::parse(kStrictSchema);
  for (int i = 0; i < 60; ++i) {
    Conversation conversation;
    conversation.thinking = false;
    Message message;
    message.role = Role::kAssistant;
    for (int n = 0; n < 1 + i % 2; ++n)
      message.tool_calls.push_back(
          {"", "get_weather", python_dumps(test::random_instance(schema, schema, random))});
    message.tool_calls.push_back({"", "now", "{}"});
    conversation.messages = {Message(), message};
    conversation.add_generation_prompt = false;
    std::string text = encode_chat(conversation).text;
    text = text.substr(text.find(kThinkClose) + kThinkClose.size());
    text.resize(text.size() - kEos.size());
    expect_writable(state_of(tool_request(ToolChoice::Kind::kRequired)), text);
  }
}

TEST(GrammarCalls, NamedToolIsForcedBehindReasoning) {
  GrammarRequest request = tool_request(ToolChoice::Kind::kNamed);
  request.tool_choice.name = "now";
  request.start = ParserStart::kReasoning;
  GrammarState state = state_of(request);
  EXPECT_TRUE(state.is_free());
  EXPECT_FALSE(state.is_complete());
  EXPECT_TRUE(state.accept("let me see < </thin \xff"));
  EXPECT_TRUE(state.is_free());
  EXPECT_TRUE(state.accept(kThinkClose));
  EXPECT_FALSE(state.is_free());
  const std::string forced =
      "\n\n<" + std::string(kDsml) + " calls>\n<" + std::string(kDsml) + " invoke name=\"now\">\n";
  for (size_t i = 0; i < forced.size(); ++i) {
    for (const int32_t id : allowed_tokens(state)) {
      const std::string& token = vocabulary().tokens[size_t(id)];
      EXPECT_EQ(forced.compare(i, token.size(), token.substr(0, forced.size() - i)), 0) << token;
    }
    ASSERT_TRUE(state.accept(forced.substr(i, 1)));
  }
}

TEST(GrammarCalls, FirstCallAloneWithoutParallelCalls) {
  GrammarRequest request = tool_request(ToolChoice::Kind::kRequired);
  request.start = ParserStart::kCalls;
  const std::string marker(kDsml);
  const std::string call = "<" + marker + " invoke name=\"now\">\n\n</" + marker + " invoke>\n";
  const std::string closer = "</" + marker + " calls>";
  EXPECT_TRUE(writes(request, call + closer));
  EXPECT_TRUE(writes(request, call + call + closer));
  request.parallel_tool_calls = false;
  EXPECT_TRUE(writes(request, call + closer));
  EXPECT_FALSE(writes(request, call + call + closer));
}

TEST(GrammarCalls, AutoIsFreeUntilABlockBegins) {
  for (const ParserStart start : {ParserStart::kContent, ParserStart::kReasoning}) {
    GrammarRequest request = tool_request(ToolChoice::Kind::kAuto);
    request.start = start;
    GrammarState state = state_of(request);
    EXPECT_TRUE(state.is_complete());  // a text without calls may end
    EXPECT_TRUE(state.accept("Hello</think> {<" + std::string(kDsml) + " thing>\n"));
    EXPECT_TRUE(state.is_free());
    for (const char* spelling : {" calls>", "toolcalls>"}) {
      GrammarState copy = state;
      EXPECT_TRUE(copy.accept("<" + std::string(kDsml) + spelling));
      EXPECT_FALSE(copy.is_free());
      EXPECT_FALSE(copy.is_complete());
      EXPECT_FALSE(copy.accept("\nfree"));
      EXPECT_TRUE(copy.accept("\n<" + std::string(kDsml) + " invoke name=\"now\">\n"));
    }
  }
}

TEST(GrammarCalls, FreeToolsTakeAnyParameters) {
  GrammarRequest request = tool_request(ToolChoice::Kind::kRequired);
  for (ToolDefinition& tool : request.tools) tool.strict = false;
  std::mt19937 random(2);
  int num_finished = 0;
  for (int i = 0; i < 30; ++i)
    if (const auto text = random_walk(state_of(request), random)) {
      ++num_finished;
      for (const ParsedCall& call : parse(request, *text).calls)
        EXPECT_TRUE(json::parse(call.arguments).is_object());
    }
  EXPECT_GT(num_finished, 10);
}

TEST(GrammarCalls, JsonFormatLeavesCallsPossible) {
  GrammarRequest request = tool_request(ToolChoice::Kind::kAuto);
  request.response_format.kind = ResponseFormat::Kind::kJsonObject;
  EXPECT_TRUE(writes(request, "{\"a\": 1}"));
  const std::string marker(kDsml);
  EXPECT_TRUE(writes(request, "\n\n<" + marker + " calls>\n<" + marker +
                                  " invoke name=\"now\">\n\n</" + marker + " invoke>\n</" + marker +
                                  " calls>"));
  EXPECT_FALSE(writes(request, "text"));
}

TEST(GrammarCalls, NothingToConstrain) {
  GrammarRequest request = tool_request(ToolChoice::Kind::kAuto);
  for (ToolDefinition& tool : request.tools) tool.strict = false;
  EXPECT_EQ(Grammar::compile(request), nullptr);
  EXPECT_EQ(Grammar::compile(GrammarRequest{}), nullptr);
  request = tool_request(ToolChoice::Kind::kNone);
  EXPECT_EQ(Grammar::compile(request), nullptr);
}

TEST(GrammarCalls, RefusesWhatMarkupCannotHold) {
  for (const char* schema : {R"({"type": "string"})", R"({"anyOf": [{"type": "object"}]})",
                             R"({"type": "object", "properties": {"a\"b": {}}})",
                             R"({"type": "object", "properties": {"a": {"not": {}}}})"}) {
    GrammarRequest request;
    request.tools.push_back({"f", "", json::parse(schema), true});
    try {
      Grammar::compile(request);
      ADD_FAILURE() << schema;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_TRUE(std::string(error.what()).starts_with("tools[0].function.parameters"));
    }
  }
}

// ---- The vocabulary ----

TEST(TokenTrie, HoldsEveryTokenOnceInOrder) {
  const TokenTrie& trie = *vocabulary().trie;
  std::vector<int> seen(size_t(trie.vocab_size()), 0);
  std::string path;
  for (const TokenTrie::Node& node : trie.nodes().subspan(1)) {
    path.resize(node.depth - 1u);
    path += char(node.byte);
    for (const int32_t id : trie.tokens_at(node)) {
      EXPECT_EQ(trie.token_bytes(id), path);
      ++seen[size_t(id)];
    }
  }
  for (int32_t id = 0; id < trie.vocab_size(); ++id) {
    const bool silent = std::find(trie.silent_ids().begin(), trie.silent_ids().end(), id) !=
                        trie.silent_ids().end();
    EXPECT_EQ(seen[size_t(id)], trie.is_end(id) || silent ? 0 : 1) << id;
  }
}

TEST(TokenTrie, OfATokenizerHoldsNoTokenThatBeginsATurn) {
  const Tokenizer& tokenizer = test::demo_tokenizer();
  const auto trie = make_token_trie(tokenizer);
  EXPECT_EQ(trie->vocab_size(), tokenizer.vocab_size());
  for (const std::string_view stop : kStopTokens)
    if (const auto id = tokenizer.added_token(stop)) {
      EXPECT_TRUE(trie->is_end(*id));
    }
  const auto image = tokenizer.added_token(kImage);
  ASSERT_TRUE(image.has_value());
  EXPECT_EQ(trie->token_bytes(*image), "");
  EXPECT_EQ(trie->token_bytes(*tokenizer.added_token(kDsml)), kDsml);
  EXPECT_EQ(trie->token_bytes(tokenizer.encode("a")[0]), "a");
}

TEST(TokenTrie, RefusesAnEndIdThatIsNoToken) {
  const std::vector<std::string_view> tokens = {"a"};
  const std::vector<int32_t> ends = {1};
  EXPECT_THROW(TokenTrie(tokens, ends), Error);
}

}  // namespace
}  // namespace onecard::text
