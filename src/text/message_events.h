// What a model's output means, piece by piece: the one event model from which every frontend builds
// its stream and its whole answer. Text in events is UTF-8; neighbouring deltas of one kind may be
// merged without changing the meaning.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace onecard::text {

enum class FinishReason {
  kStop,       // the model ended its turn, or a stop string was met
  kLength,     // the token limit cut the output
  kToolCalls,  // at least one call, and the block of calls was not cut by the token limit
};

/// "stop", "length" or "tool_calls".
const char* finish_reason_name(FinishReason reason);

struct ReasoningDelta {
  std::string text;
};

struct ContentDelta {
  std::string text;
};

/// A call begins; calls count up from 0 and never overlap.
struct CallStart {
  int index = 0;
  std::string name;  // with its namespace, if it has one: "namespace::name"
};

/// More of the call's arguments: the text of a JSON object, in the style of python_json.h.
struct ArgumentsDelta {
  int index = 0;
  std::string text;
};

/// The arguments are complete. A call that the token limit cuts never gets this.
struct CallEnd {
  int index = 0;
};

/// The last event of every message.
struct MessageEnd {
  FinishReason reason = FinishReason::kStop;
  std::string stop_string;  // the one that was met; empty when none was
};

using MessageEvent =
    std::variant<ReasoningDelta, ContentDelta, CallStart, ArgumentsDelta, CallEnd, MessageEnd>;
using MessageEvents = std::vector<MessageEvent>;

}  // namespace onecard::text
