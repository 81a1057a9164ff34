// A conversation to the exact text that the model was trained on, and to token ids. Pure functions,
// safe from any thread.
#pragma once

#include <string>
#include <vector>

#include "text/chat.h"
#include "text/tokenizer.h"

namespace onecard::text {

struct Prompt {
  std::string text;
  /// The parts of `text` that a client wrote; ascending, not overlapping, none empty.
  std::vector<ByteRange> client_ranges;

  bool thinking = true;
  int effort = 75;
  ParserStart output_start = ParserStart::kReasoning;
  /// The output goes on with a message that already has text: leading newlines belong to it.
  bool continuation = false;
  bool tools_active = false;
  /// Text that decoding has to produce directly after </think>, because a tool call was demanded of
  /// a thinking model; empty otherwise. (Without thinking the demand is part of the prompt.)
  std::string forced_after_thinking;
  /// The sources of the image placeholders, in order of appearance.
  std::vector<std::string> image_sources;
};

struct ChatEncoderOptions {
  /// With a tool choice of "none" the tools are shown all the same, so that changing the choice
  /// does not change the prompt's beginning.
  bool show_unused_tools = false;
};

/// Throws kInvalidArgument when the conversation contradicts itself (an image in a system message,
/// an unknown tool choice, a continuation of something that is not the assistant's); the message
/// begins with the request's parameter and ": ".
Prompt encode_chat(const Conversation& conversation, const ChatEncoderOptions& options = {});

/// What markup in a client's text does.
enum class ClientMarkup {
  kText,    // it is ordinary text: nobody forges a turn or an image
  kTokens,  // it becomes the tokens it names, as other servers do
};

/// The ids of the prompt. Throws kUnsupported when the tokenizer lacks one of the tokens that the
/// prompt's own markup needs.
std::vector<TokenId> encode_ids(const Prompt& prompt, const Tokenizer& tokenizer,
                                ClientMarkup markup = ClientMarkup::kText);

}  // namespace onecard::text
