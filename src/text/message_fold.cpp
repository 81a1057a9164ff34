#include "text/message_fold.h"

#include "base/error.h"

namespace onecard::text {

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
  }
  return "?";
}

namespace {

struct Folder {
  ParsedMessage& message;

  void operator()(const ReasoningDelta& delta) { message.reasoning += delta.text; }
  void operator()(const ContentDelta& delta) { message.content += delta.text; }
  void operator()(const CallStart& start) {
    ONECARD_ASSERT(size_t(start.index) == message.calls.size());
    message.calls.push_back({start.name, {}, false});
  }
  void operator()(const ArgumentsDelta& delta) { call(delta.index).arguments += delta.text; }
  void operator()(const CallEnd& end) { call(end.index).complete = true; }
  void operator()(const MessageEnd& end) {
    message.finish_reason = end.reason;
    message.stop_string = end.stop_string;
  }

  ParsedCall& call(int index) {
    ONECARD_ASSERT(size_t(index) + 1 == message.calls.size());
    return message.calls.back();
  }
};

}  // namespace

void fold(const MessageEvent& event, ParsedMessage& message) { std::visit(Folder{message}, event); }

ParsedMessage fold(const MessageEvents& events) {
  ParsedMessage message;
  for (const MessageEvent& event : events) fold(event, message);
  return message;
}

}  // namespace onecard::text
