// A conversation with a server that speaks chat completions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "client/http.h"

namespace onecard::client {

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

/// A piece of an answer; one of the two texts, or the name of a call that begins.
struct ChatPiece {
  std::string reasoning;
  std::string content;
  std::string call_name;
  std::string call_arguments;
};

class ChatClient {
 public:
  ChatClient(const std::string& url, const std::string& api_key) : http_(url, api_key) {}

  /// The names that the server serves. Throws Error.
  std::vector<std::string> models();

  /// Sends `messages` and streams the answer. `extra` are further fields of the request. Stops
  /// early when `keep_going` says false. Throws kInvalidArgument with the server's message when it
  /// refuses, kIo when it cannot be reached or breaks off.
  ChatAnswer ask(const json::Value& messages, const std::vector<json::Member>& extra,
                 const std::function<void(const ChatPiece&)>& on_piece,
                 const std::function<bool()>& keep_going);

 private:
  Http http_;
};

/// The assistant's message as the next request has to send it.
json::Value history_message(const ChatAnswer& answer);

}  // namespace onecard::client
