// Rendering and tokenising chats, with the release vocabulary if tools/fetch_vocabulary.py has put
// it into build/vocabulary, otherwise with the demo's. One core.
#include <benchmark/benchmark.h>

#include <cmath>
#include <filesystem>
#include <random>
#include <string>

#include "text/chat_encoder.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace onecard::text {
namespace {

std::string tokenizer_path() {
  const std::string root = ONECARD_SOURCE_DIR;
  const std::string release = root + "/build/vocabulary/tokenizer.json";
  return std::filesystem::exists(release) ? release
                                          : root + "/tests/golden/text/demo_tokenizer.json";
}

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(tokenizer_path());
  return loaded;
}

// Prose in several scripts, code, JSON and numbers. Words are drawn from the vocabulary; one in
// eight is glued from two tokens.
class TextMaker {
 public:
  std::string word() {
    std::string text = part(true);
    if (pick(8) == 0) text += part(false);
    return text;
  }

  std::string prose(size_t num_bytes) {
    std::string text;
    while (text.size() < num_bytes) {
      text += word();
      if (pick(12) == 0) text += ". ";
      if (pick(60) == 0) text += "\n\n";
      if (pick(30) == 0) text.append(" ").append(std::to_string(pick(1'000'000)));
    }
    return valid_utf8(text);
  }

  std::string code(size_t num_bytes) {
    std::string text;
    while (text.size() < num_bytes) {
      text.append(2 * pick(5), ' ');
      text.append("result_").append(std::to_string(pick(100))).append(" = getHTTPResponse(");
      text.append(word()).append(", \"").append(word()).append("\");  // ");
      text.append(word()).append(word()).append("\n");
    }
    return valid_utf8(text);
  }

  std::string arguments() {
    std::string text = "{\"path\": \"/usr/share/";
    text.append(std::to_string(pick(10000))).append("/file.txt\", \"limit\": ");
    text.append(std::to_string(pick(100)));
    return text.append(", \"filters\": [{\"field\": \"name\", \"value\": \"a b c\"}]}");
  }

 private:
  // A token with or without a space in front; the frequent ones, which have low ids, more often.
  std::string part(bool begins_word) {
    for (;;) {
      const double u = std::uniform_real_distribution<double>(0, 1)(random_);
      const auto id = static_cast<TokenId>(300 * std::pow(tokenizer().vocab_size() / 310.0, u));
      if (tokenizer().is_added(id)) continue;
      const std::string_view bytes = tokenizer().token_bytes(id);
      if (bytes.starts_with(' ') == begins_word) return std::string(bytes);
    }
  }

  int pick(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }

  static std::string valid_utf8(const std::string& bytes) {
    Utf8Assembler assembler;
    std::string text;
    assembler.push(bytes, text);
    assembler.finish(text);
    return text;
  }

  std::mt19937 random_{7};
};

Conversation make_chat(size_t num_bytes) {
  TextMaker maker;
  const auto say = [](Role role, std::string text) {
    Message message;
    message.role = role;
    message.content = {{ContentPart::Kind::kText, std::move(text)}};
    return message;
  };
  Conversation chat;
  ToolDefinition tool;
  tool.name = "read_file";
  chat.tools = {tool};
  chat.messages.push_back(say(Role::kSystem, maker.prose(4000)));
  for (size_t size = 0; size < num_bytes; size += 8500) {
    chat.messages.push_back(say(Role::kUser, maker.prose(1000)));
    Message call = say(Role::kAssistant, maker.prose(500));
    call.reasoning = maker.prose(2000);
    call.tool_calls = {{"c", "read_file", maker.arguments()}};
    chat.messages.push_back(call);
    Message result = say(Role::kTool, maker.code(4000));
    result.tool_call_id = "c";
    chat.messages.push_back(result);
    chat.messages.push_back(say(Role::kAssistant, maker.prose(1000)));
  }
  return chat;
}

void BM_RenderAndTokenise(benchmark::State& state) {
  const Conversation chat = make_chat(state.range(0));
  const Prompt prompt = encode_chat(chat);
  std::string decoded;
  const std::vector<TokenId> ids = encode_ids(prompt, tokenizer());
  for (const TokenId id : ids) decoded += tokenizer().token_bytes(id);
  if (decoded != prompt.text) return state.SkipWithError("wrong result, so not timed");
  for (auto _ : state) benchmark::DoNotOptimize(encode_ids(encode_chat(chat), tokenizer()));
  state.SetBytesProcessed(state.iterations() * int64_t(prompt.text.size()));
  state.counters["tokens"] = double(ids.size());
  state.SetLabel("vocabulary " + std::to_string(tokenizer().vocab_size()));
}
BENCHMARK(BM_RenderAndTokenise)->ArgName("bytes")->Arg(1'000'000)->Unit(benchmark::kMillisecond);

// The same text every time, so that nothing but the length of the piece matters.
void BM_EqualCharacters(benchmark::State& state) {
  const std::string text(state.range(0), 'a');
  std::string decoded;
  for (const TokenId id : tokenizer().encode(text)) decoded += tokenizer().token_bytes(id);
  if (decoded != text) return state.SkipWithError("wrong result, so not timed");
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer().encode(text));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_EqualCharacters)
    ->ArgName("bytes")
    ->Arg(10'000)
    ->Arg(100'000)
    ->Arg(1'000'000)
    ->Unit(benchmark::kMillisecond);

void BM_Load(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(tokenizer_path()));
}
BENCHMARK(BM_Load)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace onecard::text
