// Events to the whole message: what a frontend that does not stream answers with.
#pragma once

#include <string>
#include <vector>

#include "text/message_events.h"

namespace onecard::text {

struct ParsedCall {
  std::string name;
  std::string arguments;  // the text of a JSON object, unless the token limit cut it
  bool complete = false;
};

struct ParsedMessage {
  std::string reasoning;
  std::string content;  // APIs show null instead of "" when there are calls: content_is_null()
  std::vector<ParsedCall> calls;
  FinishReason finish_reason = FinishReason::kStop;
  std::string stop_string;

  bool content_is_null() const { return content.empty() && !calls.empty(); }
};

/// Adds one event to the message. Folding all events of a message gives the message.
void fold(const MessageEvent& event, ParsedMessage& message);
ParsedMessage fold(const MessageEvents& events);

}  // namespace onecard::text
