// text/grammar: any schema compiles within its bounds or is refused; what a compiled grammar allows
// can be followed, its masks agree with following tokens, and it never leads to where nothing is
// allowed.
//
// Input: one byte of options, a zero-terminated schema, then bytes that choose tokens.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/chat_tokens.h"
#include "text/grammar/grammar.h"

namespace {

using onecard::text::Grammar;
using onecard::text::GrammarRequest;
using onecard::text::GrammarState;
using onecard::text::TokenTrie;

void expect(bool condition) {
  if (!condition) std::abort();
}

const std::shared_ptr<const TokenTrie>& trie() {
  static const std::shared_ptr<const TokenTrie> built = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, char(byte));
    for (const char* token : {"\", \"", "\": ", "{\"", "\"}", "]}", "\n", "\">\n", "true\">", "12"})
      tokens.emplace_back(token);
    // Words that reach bounds from far away.
    for (const size_t length : {6, 11, 12, 17, 24, 25, 33})
      for (const char* end : {"", "\"", "\"}", ".x"})
        tokens.push_back(std::string(length, 'x') + end);
    tokens.emplace_back(onecard::text::kDsml);
    tokens.emplace_back(onecard::text::kThinkClose);
    tokens.emplace_back();
    const std::vector<std::string_view> views(tokens.begin(), tokens.end());
    const std::vector<int32_t> ends = {int32_t(tokens.size()) - 1};
    return std::make_shared<const TokenTrie>(views, ends);
  }();
  return built;
}

GrammarRequest request_from(uint8_t choices, const onecard::json::Value& schema) {
  GrammarRequest request;
  request.limits = {.max_nodes = 20'000, .max_schema_depth = 16, .max_pattern_work = 20'000};
  const onecard::text::ParserStart starts[] = {onecard::text::ParserStart::kReasoning,
                                               onecard::text::ParserStart::kContent,
                                               onecard::text::ParserStart::kCalls};
  request.start = starts[choices % 3];
  if (choices & 4) {
    request.response_format.kind = onecard::text::ResponseFormat::Kind::kJsonSchema;
    request.response_format.schema = schema;
  }
  if ((choices & 8) || request.start == onecard::text::ParserStart::kCalls) {
    request.tools.push_back({"f", "", schema, (choices & 16) != 0});
    request.tools.push_back({"free", "", onecard::json::Value::object(), false});
    if (choices & 32) request.tool_choice.kind = onecard::text::ToolChoice::Kind::kRequired;
  }
  request.parallel_tool_calls = (choices & 64) == 0;
  return request;
}

// Follows tokens that `steps` choose among the allowed ones. One step in eight looks at them all.
void follow(GrammarState state, std::string_view steps) {
  std::vector<uint64_t> mask;
  std::vector<int32_t> allowed;
  for (const char step : steps) {
    const auto choice = static_cast<unsigned char>(step);
    mask.assign(trie()->mask_words(), ~uint64_t{0});
    allowed.clear();
    state.fill_mask(mask);
    for (int32_t id = 0; id < trie()->vocab_size(); ++id) {
      const bool bit = (mask[size_t(id) / 64] >> (id % 64) & 1) != 0;
      if (bit) allowed.push_back(id);
      if (choice % 8 != 0) continue;
      GrammarState copy = state;
      expect(copy.accept_token(id) == bit);
    }
    expect(!allowed.empty());
    const int32_t id = allowed[choice % allowed.size()];
    expect(state.accept_token(id));
    if (trie()->is_end(id)) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 3000) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data + 1), size - 1);
  const std::string_view schema = input.substr(0, input.find('\0'));
  const std::string_view steps = input.substr(std::min(schema.size() + 1, input.size()));
  try {
    const auto grammar = Grammar::compile(request_from(data[0], onecard::json::parse(schema)));
    if (grammar) follow(GrammarState(grammar, trie()), steps.substr(0, 40));
  } catch (const onecard::Error& error) {
    const onecard::ErrorCode code = error.code();
    expect(code == onecard::ErrorCode::kInvalidArgument ||
           code == onecard::ErrorCode::kUnsupported ||
           code == onecard::ErrorCode::kResourceExhausted);
  }
  return 0;
}
