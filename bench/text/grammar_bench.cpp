// Token masks over a vocabulary of 129,280 ids, and the output parser on a long argument. The
// vocabulary is the release's if tools/fetch_vocabulary.py has put it into build/vocabulary,
// otherwise one of random words. One core.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/chat_tokens.h"
#include "text/grammar/grammar.h"
#include "text/grammar/tokenizer_trie.h"
#include "text/message_fold.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace onecard::text {
namespace {

constexpr int kVocabSize = 129'280;

// Words, punctuation and three-byte characters.
std::vector<std::string> random_vocabulary() {
  std::vector<std::string> tokens;
  tokens.emplace_back();
  tokens.emplace_back();
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, char(byte));
  std::mt19937 random(1);
  constexpr std::string_view kPunctuation = " \"{}[]:,.\n<>/\\-_()=;'";
  while (tokens.size() < kVocabSize) {
    std::string token;
    if (random() % 2 == 0) token += ' ';
    const size_t length = 1 + random() % 9;
    const int kind = int(random() % 10);
    for (size_t i = 0; i < length; ++i) {
      if (kind == 0)
        token += kPunctuation[random() % kPunctuation.size()];
      else if (kind < 3)
        token.append("\xe4")
            .append(1, char(0xb8 + random() % 8))
            .append(1, char(0x80 + random() % 64));
      else
        token += char('a' + random() % 26);
    }
    tokens.push_back(token);
  }
  return tokens;
}

std::shared_ptr<const TokenTrie> load_trie() {
  const std::string path = std::string(ONECARD_SOURCE_DIR) + "/build/vocabulary/tokenizer.json";
  if (std::filesystem::exists(path)) return make_token_trie(Tokenizer::load(path));
  const std::vector<std::string> tokens = random_vocabulary();
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  const std::vector<int32_t> ends = {1};
  return std::make_shared<const TokenTrie>(views, ends);
}

const std::shared_ptr<const TokenTrie>& trie() {
  static const std::shared_ptr<const TokenTrie> loaded = load_trie();
  return loaded;
}

// A record with nested objects, lists, enums and optional texts, as agents ask for.
constexpr const char* kSchema = R"({"type": "object", "properties": {
  "title": {"type": "string"}, "kind": {"enum": ["bug", "feature", "question"]},
  "priority": {"type": "integer", "minimum": 1, "maximum": 5},
  "estimate": {"type": ["number", "null"]}, "tags": {"type": "array", "items": {"type": "string"}},
  "author": {"type": "object", "properties": {"name": {"type": "string"},
     "mail": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
     "required": ["name", "mail"], "additionalProperties": false},
  "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}}, "done": {"type": "boolean"}},
  "required": ["title", "kind", "priority", "estimate", "tags", "author", "steps", "done"],
  "additionalProperties": false, "$defs": {"step": {"type": "object", "properties": {
     "text": {"type": "string"}, "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}}},
     "required": ["text", "steps"], "additionalProperties": false}}})";

// The same record where every member has bounds of its own.
constexpr const char* kLimits = R"({"type": "object", "properties": {
  "title": {"type": "string", "minLength": 3, "maxLength": 400},
  "id": {"type": "string", "format": "uuid"}, "at": {"type": "string", "format": "date-time"},
  "mail": {"type": "string", "format": "email"}, "host": {"type": "string", "format": "hostname"},
  "branch": {"type": "string", "pattern": "^[a-z0-9]+(?:[-/][a-z0-9]+)*$", "maxLength": 60},
  "share": {"type": "number", "minimum": 0, "maximum": 1}, "price": {"type": "number", "multipleOf": 0.01},
  "notes": {"type": "array", "items": {"type": "string", "maxLength": 80}, "minItems": 1, "maxItems": 9}},
  "required": ["title", "id", "at", "mail", "host", "branch", "share", "price", "notes"],
  "additionalProperties": false})";

GrammarRequest request(int what) {
  GrammarRequest request;
  if (what == 0) {
    request.response_format.kind = ResponseFormat::Kind::kJsonObject;
  } else if (what == 1 || what == 3) {
    request.response_format.kind = ResponseFormat::Kind::kJsonSchema;
    request.response_format.schema = json::parse(what == 1 ? kSchema : kLimits);
  } else {
    request.tools.push_back({"report", "", json::parse(kSchema), true});
    request.tool_choice.kind = ToolChoice::Kind::kRequired;
    request.start = ParserStart::kReasoning;
  }
  return request;
}

const char* name_of(int what) {
  constexpr std::array kNames = {"json_object", "json_schema", "strict_tool", "limits"};
  return kNames[size_t(what)];
}

// What a model could write for each request: words of a few letters, lists and nested objects.
std::string answer(int what) {
  std::mt19937 random(3);
  const auto words = [&](int count) {
    constexpr std::string_view kWords[] = {"the",          "parser",       "holds", "a newline",
                                           "run",          "until",        "it",    "knows",
                                           "\u8fd9\u4e2a", "what follows", "file.", "na\u00efve"};
    std::string text;
    for (int i = 0; i < count; ++i)
      text.append(i > 0 ? " " : "").append(kWords[random() % std::size(kWords)]);
    return text;
  };
  const auto steps = [&](auto& self, int depth) -> std::string {
    std::string text = "[";
    for (int i = 0; i < 3 - depth; ++i)
      text.append(i > 0 ? ", " : "")
          .append("{\"text\": \"")
          .append(words(12))
          .append("\", \"steps\": ")
          .append(self(self, depth + 1))
          .append("}");
    return text + "]";
  };
  const std::string author = "{\"name\": \"" + words(2) + "\", \"mail\": null}";
  const std::string tags = "[\"" + words(1) + "\", \"" + words(2) + "\", \"" + words(1) + "\"]";
  if (what == 3) {
    std::string notes;
    for (int i = 0; i < 6; ++i) notes += (i > 0 ? ", \"" : "\"") + words(6) + "\"";
    return "{\"title\": \"" + words(40) +
           "\", \"id\": \"123e4567-e89b-12d3-a456-426614174000\", \"at\": "
           "\"2024-02-29T23:59:59Z\", \"mail\": \"first.last@example.org\", \"host\": "
           "\"node-7.example.org\", \"branch\": \"text/grammar-limits\", \"share\": 0.375, "
           "\"price\": 1234.5, \"notes\": [" +
           notes + "]}";
  }
  if (what < 2) {
    std::string text = "{\"title\": \"" + words(8);
    text += "\", \"kind\": \"bug\", \"priority\": 3, \"estimate\": 12.5, \"tags\": " + tags;
    text += ", \"author\": " + author + ", \"steps\": " + steps(steps, 0);
    return text + ", \"done\": false}";
  }
  std::string text(kThinkClose);
  const std::string open = std::string(kDsmlOpen) + " ", close = std::string(kDsmlClose) + " ";
  text += "\n\n";
  text += open + "calls>\n" + open + "invoke name=\"report\">";
  const auto parameter = [&](const std::string& name, bool string, const std::string& value) {
    text.append("\n").append(open).append("parameter name=\"").append(name);
    text.append(string ? "\" string=\"true\">" : "\" string=\"false\">").append(value);
    text.append(close).append("parameter>");
  };
  parameter("title", true, words(8));
  parameter("kind", true, "bug");
  parameter("priority", false, "3");
  parameter("estimate", false, "12.5");
  parameter("tags", false, tags);
  parameter("author", false, author);
  parameter("steps", false, steps(steps, 0));
  parameter("done", false, "false");
  return text + "\n" + close + "invoke>\n" + close + "calls>";
}

// The text in the longest tokens there are.
std::vector<int32_t> tokens_of(std::string_view text) {
  const auto nodes = trie()->nodes();
  std::vector<int32_t> ids;
  while (!text.empty()) {
    int32_t longest = -1;
    size_t depth = 0;
    for (uint32_t node = 0; depth < text.size();) {
      uint32_t child = node + 1;
      while (child < nodes[node].subtree_end && nodes[child].byte != uint8_t(text[depth]))
        child = nodes[child].subtree_end;
      if (child >= nodes[node].subtree_end) break;
      node = child;
      ++depth;
      if (nodes[node].num_tokens > 0) longest = trie()->tokens_at(nodes[node])[0];
    }
    if (longest < 0) return {};
    ids.push_back(longest);
    text.remove_prefix(trie()->token_bytes(longest).size());
  }
  return ids;
}

// CPU time of this thread: what else the machine does is not counted.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

// One request: compile, then a mask and an accepted token a step, with nothing known from earlier
// requests but the trie.
void BM_GrammarRequest(benchmark::State& bench) {
  const int what = int(bench.range(0));
  const std::vector<int32_t> ids = tokens_of(answer(what));
  if (ids.empty()) return bench.SkipWithError("the vocabulary cannot write the answer");
  std::vector<uint64_t> mask(trie()->mask_words());
  double compile_s = 0, steps_s = 0, first_s = 0, worst_s = 0;
  for (auto _ : bench) {
    const double start = cpu_seconds();
    GrammarState state(Grammar::compile(request(what)), trie());
    double last = cpu_seconds();
    compile_s += last - start;
    for (size_t i = 0; i < ids.size(); ++i) {
      std::fill(mask.begin(), mask.end(), ~uint64_t{0});
      state.fill_mask(mask);
      const bool allowed = (mask[size_t(ids[i]) / 64] >> (ids[i] % 64) & 1) != 0;
      if (!allowed || !state.accept_token(ids[i]))
        return bench.SkipWithError("a token of the answer is not allowed");
      const double now = cpu_seconds();
      if (i == 0) first_s += now - last;
      worst_s = std::max(worst_s, now - last);
      steps_s += now - last;
      last = now;
    }
    if (!state.is_complete()) return bench.SkipWithError("the answer is not complete");
  }
  const double runs = double(bench.iterations());
  bench.SetLabel(name_of(what));
  bench.counters["ids"] = trie()->vocab_size();
  bench.counters["steps"] = double(ids.size());
  bench.counters["us_per_step"] = steps_s / runs / double(ids.size()) * 1e6;
  bench.counters["ms_compile"] = compile_s / runs * 1e3;
  bench.counters["ms_first_step"] = first_s / runs * 1e3;
  bench.counters["ms_worst_step"] = worst_s * 1e3;
}
BENCHMARK(BM_GrammarRequest)->DenseRange(0, 3)->Unit(benchmark::kMillisecond);

// What a step costs where the mask is known already: the middle of a string.
void BM_GrammarKnownMask(benchmark::State& bench) {
  GrammarState state(Grammar::compile(request(1)), trie());
  std::vector<uint64_t> mask(trie()->mask_words(), ~uint64_t{0});
  if (!state.accept("{\"title\": \"The") || !state.fill_mask(mask))
    return bench.SkipWithError("the schema's first string was refused");
  for (auto _ : bench) {
    std::fill(mask.begin(), mask.end(), ~uint64_t{0});
    benchmark::DoNotOptimize(state.fill_mask(mask));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_GrammarKnownMask);

void BM_TokenTrieBuild(benchmark::State& bench) {
  std::vector<std::string_view> views;
  for (int32_t id = 0; id < trie()->vocab_size(); ++id) views.push_back(trie()->token_bytes(id));
  for (auto _ : bench) benchmark::DoNotOptimize(TokenTrie(views, trie()->end_ids()).nodes().size());
  bench.counters["nodes"] = double(trie()->nodes().size());
}
BENCHMARK(BM_TokenTrieBuild)->Unit(benchmark::kMillisecond);

// A file written through a tool call, in pieces of so many bytes.
void BM_ParseLongArgument(benchmark::State& bench) {
  const size_t piece = size_t(bench.range(0)), num_bytes = 1'000'000;
  const std::string open = std::string(kDsmlOpen) + " ", close = std::string(kDsmlClose) + " ";
  std::string value;
  while (value.size() < num_bytes) value += "if (a < b) return \"x\";\n";
  const std::string raw = open + "calls>\n" + open + "invoke name=\"write\">\n" + open +
                          "parameter name=\"content\" string=\"true\">" + value + close +
                          "parameter>\n" + close + "invoke>\n" + close + "calls>";
  OutputParserOptions options;
  options.tools.push_back({"write", "", json::parse(R"({"type": "object", "properties":
      {"content": {"type": "string"}}})"),
                           false});
  const auto parse = [&] {
    OutputParser parser(options);
    ParsedMessage message;
    for (size_t begin = 0; begin < raw.size(); begin += piece)
      for (const MessageEvent& event : parser.feed(std::string_view(raw).substr(begin, piece)))
        fold(event, message);
    for (const MessageEvent& event : parser.finish(OutputEnd::kEndOfTurn)) fold(event, message);
    return message;
  };
  if (json::parse(parse().calls.at(0).arguments).find("content")->as_string() != value)
    return bench.SkipWithError("the argument came out changed");
  for (auto _ : bench) benchmark::DoNotOptimize(parse());
  bench.SetBytesProcessed(bench.iterations() * int64_t(raw.size()));
}
BENCHMARK(BM_ParseLongArgument)
    ->ArgName("piece")
    ->Arg(4)
    ->Arg(64)
    ->Arg(1 << 20)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace onecard::text
