// One request for generated text on its way back, in any protocol: pulls the sequences, and hands
// their events to the protocol's format, as a stream or as a whole.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/api_error.h"
#include "server/generation.h"
#include "server/http/exchange.h"
#include "text/message_events.h"

namespace onecard::server {

struct Choice {
  Generation generation;
  std::vector<engine::TokenEvent> tokens;  // sampled and not yet told; only where they are kept
  text::MessageEvents events;              // of the whole answer; empty in a stream
  bool ended = false;
};

/// How a protocol writes an answer. A stream calls begin(), add() for every event, and end() or
/// fail(); everything else is one call of whole() or error().
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  virtual void begin(std::string& out) = 0;
  virtual void add(size_t choice_idx, Choice& choice, const text::MessageEvent& event,
                   std::string& out) = 0;
  virtual void end(const std::vector<Choice>& choices, std::string& out) = 0;
  virtual void fail(const ApiError& error, std::string& out) = 0;
  virtual std::string whole(std::vector<Choice>& choices) = 0;
  virtual http::Response error(const ApiError& error) = 0;
};

class AnswerExchange final : public http::Exchange {
 public:
  AnswerExchange(std::vector<Choice> choices, std::unique_ptr<AnswerFormat> format, bool stream,
                 std::string request_id)
      : choices_(std::move(choices)),
        format_(std::move(format)),
        stream_(stream),
        request_id_(std::move(request_id)) {}

  bool advance(http::ResponseWriter& writer) override;

 private:
  bool advance_stream(http::ResponseWriter& writer);
  bool advance_whole(http::ResponseWriter& writer);
  bool pull(Choice& choice, text::MessageEvents& events) const;

  std::vector<Choice> choices_;
  std::unique_ptr<AnswerFormat> format_;
  const bool stream_;
  const std::string request_id_;
  bool begun_ = false;
};

/// The head of a stream of server-sent events.
http::Response event_stream_head();
/// Appends "data: ...\n\n".
void append_event(std::string& out, std::string_view data);
/// The same with an "event: name" line in front.
void append_event(std::string& out, std::string_view name, std::string_view data);

}  // namespace onecard::server
