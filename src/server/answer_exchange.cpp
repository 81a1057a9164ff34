#include "server/answer_exchange.h"

#include <iterator>
#include <utility>

#include "base/log.h"

namespace onecard::server {
namespace {

// Neighbouring deltas of one kind become one: a burst of tokens is one frame.
text::MessageEvents merged(text::MessageEvents&& events) {
  text::MessageEvents out;
  for (text::MessageEvent& event : events) {
    if (!out.empty()) {
      if (auto* a = std::get_if<text::ContentDelta>(&out.back());
          a != nullptr && std::holds_alternative<text::ContentDelta>(event)) {
        a->text += std::get<text::ContentDelta>(event).text;
        continue;
      }
      if (auto* a = std::get_if<text::ReasoningDelta>(&out.back());
          a != nullptr && std::holds_alternative<text::ReasoningDelta>(event)) {
        a->text += std::get<text::ReasoningDelta>(event).text;
        continue;
      }
    }
    out.push_back(std::move(event));
  }
  return out;
}

}  // namespace

bool AnswerExchange::advance(http::ResponseWriter& writer) {
  return stream_ ? advance_stream(writer) : advance_whole(writer);
}

bool AnswerExchange::pull(Choice& choice, text::MessageEvents& events) const {
  choice.ended = choice.generation.pull(events);
  std::vector<engine::TokenEvent> tokens = choice.generation.take_tokens();
  choice.tokens.insert(choice.tokens.end(), std::move_iterator(tokens.begin()),
                       std::move_iterator(tokens.end()));
  if (choice.generation.error())
    log::warn("generation_failed",
              {{"request_id", request_id_}, {"error", choice.generation.error()->what()}});
  return !choice.generation.error();
}

bool AnswerExchange::advance_stream(http::ResponseWriter& writer) {
  std::string out;
  if (!std::exchange(begun_, true)) {
    writer.start_stream(event_stream_head());
    format_->begin(out);
  }
  bool ended = true;
  bool failed = false;
  for (size_t i = 0; i < choices_.size() && !failed; ++i) {
    if (choices_[i].ended) continue;
    text::MessageEvents events;
    failed = !pull(choices_[i], events);
    for (const text::MessageEvent& event : merged(std::move(events)))
      format_->add(i, choices_[i], event, out);
    if (failed) format_->fail(*choices_[i].generation.error(), out);
    ended = ended && choices_[i].ended;
  }
  ended = ended || failed;
  if (ended && !failed) format_->end(choices_, out);
  writer.write(out);
  if (ended) writer.end_stream();
  return ended;
}

bool AnswerExchange::advance_whole(http::ResponseWriter& writer) {
  bool ended = true;
  for (Choice& choice : choices_) {
    if (!choice.ended && !pull(choice, choice.events)) {
      writer.send(format_->error(*choice.generation.error()));
      return true;
    }
    ended = ended && choice.ended;
  }
  if (!ended) return false;
  http::Response response;
  response.body = format_->whole(choices_);
  writer.send(std::move(response));
  return true;
}

http::Response event_stream_head() {
  http::Response response;
  response.content_type = "text/event-stream; charset=utf-8";
  response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  return response;
}

void append_event(std::string& out, std::string_view data) {
  out += "data: ";
  out += data;
  out += "\n\n";
}

void append_event(std::string& out, std::string_view name, std::string_view data) {
  out += "event: ";
  out += name;
  out += '\n';
  append_event(out, data);
}

}  // namespace onecard::server
