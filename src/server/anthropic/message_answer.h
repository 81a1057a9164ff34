// Events to the bodies of /v1/messages (Anthropic): the events of a stream, and the whole answer.
// No HTTP.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/ids.h"
#include "server/usage.h"
#include "text/message_events.h"
#include "text/message_fold.h"

namespace onecard::server::anthropic {

struct MessageAnswer {
  std::string id;  // "msg_..."
  std::string model;
};

/// One event of a stream: its `event:` line and its `data:` line.
struct StreamEvent {
  std::string name;
  json::Value data;
};

/// The events of one message: one content block at a time, indices count up.
class MessageStream {
 public:
  explicit MessageStream(MessageAnswer answer, MakeId make_id = random_id);

  /// message_start. Only the prompt's counts of `usage` matter.
  StreamEvent start(const Usage& usage) const;
  /// Appends what an event of the message gives. `usage` is read at MessageEnd.
  void add(const text::MessageEvent& event, const Usage& usage, std::vector<StreamEvent>& out);

 private:
  enum class Block { kNone, kThinking, kText, kToolUse };

  void open(Block block, json::Value content, std::vector<StreamEvent>& out);
  void close(std::vector<StreamEvent>& out);
  void delta(json::Value value, std::vector<StreamEvent>& out) const;

  MessageAnswer answer_;
  MakeId make_id_;
  Block block_ = Block::kNone;
  int block_idx_ = -1;
};

/// The whole answer. A call that the token limit cut has no input that could be shown, and is left
/// out.
json::Value message_body(const MessageAnswer& answer, const text::ParsedMessage& message,
                         const Usage& usage, const MakeId& make_id = random_id);

/// The body of an error response, and the data of an `error` event.
json::Value error_body(const std::string& type, const std::string& message);

}  // namespace onecard::server::anthropic
