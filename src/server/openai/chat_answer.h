// Events to the bodies of /v1/chat/completions: chunks of a stream, and the whole answer. No HTTP.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/ids.h"
#include "server/usage.h"
#include "text/message_events.h"
#include "text/message_fold.h"

namespace onecard::server::openai {

/// What every body of one answer repeats.
struct ChatAnswer {
  std::string id;  // "chatcmpl-..."
  std::string model;
  int64_t created = 0;            // seconds since 1970
  bool include_reasoning = true;  // false: reasoning is not sent
  /// Reasoning is sent under both of its names, `reasoning_content` and `reasoning`: clients know
  /// one or the other. False: under the first alone.
  bool both_reasoning_fields = true;
};

/// The chunks of one choice, in order.
class ChatChoiceStream {
 public:
  ChatChoiceStream(ChatAnswer answer, int choice_idx, MakeId make_id = random_id);

  /// The chunk that opens the choice.
  json::Value first_chunk() const;
  /// The chunk of an event; none for events that this protocol does not show. `stop_token_id` is
  /// the stop id that ended the answer, for MessageEnd.
  std::optional<json::Value> chunk(const text::MessageEvent& event,
                                   std::optional<int32_t> stop_token_id = std::nullopt);

 private:
  json::Value wrap(json::Value delta, json::Value finish_reason) const;

  ChatAnswer answer_;
  int choice_idx_;
  MakeId make_id_;
};

/// The chunk that ends a stream with include_usage.
json::Value usage_chunk(const ChatAnswer& answer, const Usage& usage);
json::Value usage_json(const Usage& usage);

/// One element of `choices` of the whole answer; `logprobs` is null when none were asked for.
json::Value chat_choice(const ChatAnswer& answer, int choice_idx,
                        const text::ParsedMessage& message, json::Value logprobs,
                        std::optional<int32_t> stop_token_id, const MakeId& make_id = random_id);
json::Value chat_completion(const ChatAnswer& answer, std::vector<json::Value> choices,
                            const Usage& usage);

}  // namespace onecard::server::openai
