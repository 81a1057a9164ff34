// A conversation with a server that speaks chat completions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "client/http.h"

namespace onecard::client {

struct ServedModel {
  std::string id;
  int64_t context_length = 0;  // tokens of prompt and answer together; 0: the server does not say
};

struct ChatCall {
  std::string id;
  std::string name;
  std::string arguments;
};

struct ChatAnswer {
  std::string reasoning;
  std::string content;
  std::vector<ChatCall> calls;
  std::string finish_reason;  // "" when it was interrupted
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
};

/// A piece of an answer: of one of the two texts, or of a call, whose name comes first.
struct ChatPiece {
  std::string reasoning;
  std::string content;
  std::string call_name;
  std::string call_arguments;
};

/// All of it throws kInvalidArgument with the server's message when it refuses, and kIo when it
/// cannot be reached, breaks off, or says what no such server says.
class ChatClient {
 public:
  /// See Http.
  ChatClient(const std::string& url, const std::string& api_key, double timeout_seconds = 0)
      : http_(url, api_key, timeout_seconds) {}

  std::vector<ServedModel> models();

  /// Sends `messages` and waits for the whole answer. `extra` are further fields of the request.
  ChatAnswer ask(const json::Value& messages, const std::vector<json::Member>& extra);

  /// The same, with pieces as they come. Stops early when `keep_going` says false.
  ChatAnswer stream(const json::Value& messages, const std::vector<json::Member>& extra,
                    const std::function<void(const ChatPiece&)>& on_piece,
                    const std::function<bool()>& keep_going);

  /// How many tokens the server's tokenizer makes of `text`; nothing when it offers no way to ask.
  std::optional<int64_t> count_tokens(const std::string& text);

 private:
  Http http_;
};

/// The assistant's message as the next request has to send it.
json::Value history_message(const ChatAnswer& answer);

/// A message of a role that has text alone: system, user.
json::Value text_message(const std::string& role, const std::string& content);

/// What a tool said, as the next request has to send it.
json::Value tool_message(const std::string& call_id, const std::string& content);

}  // namespace onecard::client
