#include "client/sse_parser.h"

#include <utility>

namespace onecard::client {

void SseParser::feed(std::string_view bytes) {
  size_t begin = 0;
  for (size_t end; (end = bytes.find('\n', begin)) != std::string_view::npos; begin = end + 1) {
    line_ += bytes.substr(begin, end - begin);
    if (!line_.empty() && line_.back() == '\r') line_.pop_back();
    take_line(std::exchange(line_, ""));
  }
  line_ += bytes.substr(begin);
}

void SseParser::take_line(std::string_view line) {
  if (line.empty()) {
    if (has_data_) on_event_(event_);
    event_ = {};
    has_data_ = false;
    return;
  }
  const size_t colon = line.find(':');
  if (colon == 0) return;  // a comment
  const std::string_view field = line.substr(0, colon);
  std::string_view value =
      colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "event") {
    event_.name = value;
  } else if (field == "data") {
    if (has_data_) event_.data += '\n';
    event_.data += value;
    has_data_ = true;
  }
}

}  // namespace onecard::client
