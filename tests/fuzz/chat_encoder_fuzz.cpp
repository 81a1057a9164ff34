// text/chat_json, chat_encoder: any body is refused or makes a prompt; what a client wrote in it
// never becomes structure: the chat tokens of the prompt are those of the same conversation without
// any markup of the client's.
#include <array>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "text/chat_encoder.h"
#include "text/chat_json.h"
#include "text/chat_tokens.h"
#include "text/tokenizer.h"

namespace {

using onecard::json::Value;
using onecard::text::ByteRange;
using onecard::text::ContentPart;
using onecard::text::Conversation;
using onecard::text::Message;
using onecard::text::Prompt;
using onecard::text::TokenId;
using onecard::text::Tokenizer;
using onecard::text::ToolCall;
using onecard::text::ToolDefinition;

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

// Text of the same length from which no chat token can be spelled: their '<' and '\uff5c' become
// characters of as many bytes that mean as little to JSON.
std::string disarmed(std::string text) {
  constexpr std::array<std::array<std::string_view, 2>, 6> kPairs = {{{"<", "\x7f"},
                                                                      {"\uff5c", "\ue001"},
                                                                      {"\\u003c", "\\u007f"},
                                                                      {"\\u003C", "\\u007f"},
                                                                      {"\\uff5c", "\\ue001"},
                                                                      {"\\uFF5C", "\\ue001"}}};
  for (const auto& [from, to] : kPairs)
    for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
      text.replace(at, from.size(), to);
  return text;
}

Value disarmed(const Value& value) {
  if (value.is_string()) return Value::string(disarmed(value.as_string()));
  Value copy = value;
  if (value.is_array())
    for (Value& item : copy.items()) item = disarmed(item);
  if (value.is_object())
    for (auto& [name, member] : copy.members()) {
      name = disarmed(name);
      member = disarmed(member);
    }
  return copy;
}

// The conversation with all that a client wrote disarmed.
Conversation disarmed(Conversation conversation) {
  for (Message& message : conversation.messages) {
    for (ContentPart& part : message.content) part.text = disarmed(part.text);
    message.reasoning = disarmed(message.reasoning);
    for (ToolCall& call : message.tool_calls) {
      call.name = disarmed(call.name);
      call.arguments = disarmed(call.arguments);
    }
  }
  for (ToolDefinition& tool : conversation.tools) {
    tool.name = disarmed(tool.name);
    tool.description = disarmed(tool.description);
    tool.parameters = disarmed(tool.parameters);
  }
  conversation.tool_choice.name = disarmed(conversation.tool_choice.name);
  return conversation;
}

// A token that structures the chat: where it begins in the prompt, and its text.
using Structure = std::set<std::pair<size_t, std::string_view>>;

Structure structure_of_text(std::string_view text) {
  Structure structure;
  for (const std::string_view token : onecard::text::kChatTokens)
    for (size_t at = text.find(token); at != text.npos; at = text.find(token, at + token.size()))
      structure.emplace(at, token);
  return structure;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const bool lenient : {false, true}) {
    try {
      const Conversation conversation = onecard::text::conversation_from_json(
          onecard::json::parse(body), {.allow_images = lenient, .lenient_history = lenient});
      const Prompt prompt = onecard::text::encode_chat(conversation);
      check(prompt.text.starts_with(onecard::text::kBos));
      check_ranges(prompt);
      std::string bytes;
      Structure structure;
      for (const TokenId id : onecard::text::encode_ids(prompt, tokenizer())) {
        if (tokenizer().is_chat_token(id))
          structure.emplace(bytes.size(), tokenizer().token_bytes(id));
        bytes += tokenizer().token_bytes(id);
      }
      check(bytes == prompt.text);
      // Where a client wrote no markup, all of it is the format's own, and stands in the same
      // places.
      check(structure ==
            structure_of_text(onecard::text::encode_chat(disarmed(conversation)).text));
    } catch (const onecard::Error& error) {
      check(error.code() == onecard::ErrorCode::kInvalidArgument ||
            error.code() == onecard::ErrorCode::kUnsupported);
    }
  }
  return 0;
}
