// Decoded model output to events, in pieces: reasoning, content and tool calls. One parser a
// sequence; it is fed by the thread that owns the connection.
//
// The folded result does not depend on how the text was cut. Text that is no well-formed markup is
// never an error: it is content, or a value, or skipped.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/message_events.h"

namespace onecard::text {

/// What ended the output.
enum class OutputEnd {
  kEndOfTurn,   // a stop id, or the parser wanted to stop
  kTokenLimit,  // max_tokens or the end of the context
};

struct OutputParserOptions {
  ParserStart start = ParserStart::kContent;
  /// The prompt ended inside a message: what follows has no beginning of its own, so nothing is
  /// trimmed from it.
  bool continuation = false;

  /// The declared tools. Markup is plain text when there are none or `tool_choice` is kNone.
  std::vector<ToolDefinition> tools;
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;  // false: the first call ends the message

  /// Matched in content alone; the match is cut off. None of them is empty.
  std::vector<std::string> stop;
  bool include_stop_string = false;

  /// A value that is marked as a string although the schema forbids strings is converted when its
  /// text is JSON of an allowed type.
  bool convert_by_schema = true;
};

/// What a piece of text was before it was text, and so whether it can be structure.
enum class TextOrigin {
  kUnknown,   // text alone: what is spelled like a tag is one
  kOrdinary,  // ordinary tokens, whole characters: a tag spelled by them is a quotation
  kMarker,    // one control token, whole: a think tag, the marker of tool markup or any other
};

class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);
  ~OutputParser();
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;

  /// The events that `text` completes. Text after wants_stop() is ignored. The pieces of one output
  /// are either all kUnknown or none is.
  MessageEvents feed(std::string_view text, TextOrigin origin = TextOrigin::kUnknown);

  /// What was held, and MessageEnd. Call once, after the last feed().
  MessageEvents finish(OutputEnd end);

  /// The message is complete whatever follows: stop sampling.
  bool wants_stop() const;

  /// The reasoning is over, or there is none: what comes is content or calls.
  bool past_reasoning() const;

  /// How often the parser looked at a byte so far. It grows linearly with the text, however that is
  /// cut.
  size_t num_bytes_scanned() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace onecard::text
