// text/chat_json, chat_encoder: any body is refused or makes a prompt; what a client wrote in it
// never becomes structure.
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/chat_encoder.h"
#include "text/chat_json.h"
#include "text/chat_tokens.h"
#include "text/tokenizer.h"

namespace {

using onecard::text::ByteRange;
using onecard::text::Prompt;
using onecard::text::TokenId;
using onecard::text::Tokenizer;

void check(bool holds) {
  if (!holds) std::abort();
}

const Tokenizer& tokenizer() {
  static const Tokenizer loaded =
      Tokenizer::load(ONECARD_SOURCE_DIR "/tests/golden/text/demo_tokenizer.json");
  return loaded;
}

void check_ranges(const Prompt& prompt) {
  size_t end = 0;
  for (const ByteRange& range : prompt.client_ranges) {
    check(range.begin >= end && range.end > range.begin && range.end <= prompt.text.size());
    end = range.end;
  }
}

// The prompt without what a client wrote: its chat tokens are all the prompt may have.
size_t num_structure_tokens(const Prompt& prompt) {
  std::string structure;
  size_t begin = 0;
  for (const ByteRange& range : prompt.client_ranges) {
    structure.append(prompt.text, begin, range.begin - begin);
    structure += '\n';  // what stood apart does not come together
    begin = range.end;
  }
  structure.append(prompt.text, begin);
  size_t num = 0;
  for (const std::string_view token : onecard::text::kChatTokens)
    for (size_t at = structure.find(token); at != std::string::npos;
         at = structure.find(token, at + token.size()))
      ++num;
  return num;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const bool lenient : {false, true}) {
    try {
      const Prompt prompt = onecard::text::encode_chat(onecard::text::conversation_from_json(
          onecard::json::parse(body), {.allow_images = lenient, .lenient_history = lenient}));
      check(prompt.text.starts_with(onecard::text::kBos));
      check_ranges(prompt);
      std::string bytes;
      size_t num_chat_tokens = 0;
      for (const TokenId id : onecard::text::encode_ids(prompt, tokenizer())) {
        bytes += tokenizer().token_bytes(id);
        num_chat_tokens += tokenizer().is_chat_token(id);
      }
      check(bytes == prompt.text);
      check(num_chat_tokens == num_structure_tokens(prompt));
    } catch (const onecard::Error& error) {
      check(error.code() == onecard::ErrorCode::kInvalidArgument ||
            error.code() == onecard::ErrorCode::kUnsupported);
    }
  }
  return 0;
}
