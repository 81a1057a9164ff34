// Server-sent events out of bytes that arrive in any pieces (WHATWG HTML, "server-sent events").
// Only what the API's streams use: event and data lines, comments.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace onecard::client {

struct SseEvent {
  std::string name;  // "" without an event line
  std::string data;  // data lines, joined by newlines
};

class SseParser {
 public:
  explicit SseParser(std::function<void(const SseEvent&)> on_event)
      : on_event_(std::move(on_event)) {}

  void feed(std::string_view bytes);

 private:
  void take_line(std::string_view line);

  std::function<void(const SseEvent&)> on_event_;
  std::string line_;  // not complete yet
  SseEvent event_;
  bool has_data_ = false;
};

}  // namespace onecard::client
