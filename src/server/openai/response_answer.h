// Events to the bodies of /v1/responses: the events of a stream, and the whole answer. No HTTP.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/ids.h"
#include "server/usage.h"
#include "text/message_events.h"

namespace onecard::server::openai {

struct ResponseAnswer {
  std::string id;  // "resp_..."
  std::string model;
  int64_t created = 0;  // seconds since 1970
  /// Tools whose only argument is the text `input`, which is what the client gets.
  std::set<std::string> custom_tools;
  /// Fields of the request that every response object repeats.
  std::vector<json::Member> echo;
};

/// The events of one response, in order, each with its `type` and `sequence_number`. A call named
/// "namespace::name" is shown with both parts apart.
class ResponseStream {
 public:
  explicit ResponseStream(ResponseAnswer answer, MakeId make_id = random_id);

  /// response.created and response.in_progress.
  void start(std::vector<json::Value>& out);
  /// Appends what an event of the message gives. `usage` is read at MessageEnd.
  void add(const text::MessageEvent& event, const Usage& usage, std::vector<json::Value>& out);
  /// response.failed: the answer cannot go on.
  void fail(const std::string& code, const std::string& message, std::vector<json::Value>& out);

  /// The response object as it stands: after MessageEnd, the whole answer.
  const json::Value& response() const { return response_; }

 private:
  enum class Item { kNone, kReasoning, kMessage, kFunctionCall, kCustomCall };

  void emit(const char* type, std::vector<json::Member> members, std::vector<json::Value>& out);
  void emit_response(const char* type, std::vector<json::Value>& out);
  void open(Item kind, json::Value item, std::vector<json::Value>& out);
  void open_text(Item kind, std::vector<json::Value>& out);
  void open_call(const std::string& name, std::vector<json::Value>& out);
  void add_text(Item kind, const std::string& text, std::vector<json::Value>& out);
  void close(bool complete, std::vector<json::Value>& out);
  std::vector<json::Member> place() const;

  ResponseAnswer answer_;
  MakeId make_id_;
  int64_t sequence_number_ = 0;
  json::Value response_;
  Item kind_ = Item::kNone;
  json::Value item_;  // the open one, without what was streamed
  std::string text_;  // what was streamed of it
};

/// The whole answer from the events of a message.
json::Value response_body(const ResponseAnswer& answer, const text::MessageEvents& events,
                          const Usage& usage, const MakeId& make_id = random_id);

}  // namespace onecard::server::openai
