// One answer on its way from tokens to events: the sequence's queue, the detokenizer and the output
// parser. Every protocol builds its stream and its whole answer from this. Owned by an exchange and
// used on its connection's strand; dropping it cancels the sequence.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/api_error.h"
#include "server/metrics.h"
#include "server/usage.h"
#include "text/detokenizer.h"
#include "text/message_events.h"
#include "text/output_parser.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace onecard::server {

struct GenerationOptions {
  /// None: the output is plain text without structure (completions), cut at `stop`.
  std::optional<text::OutputParserOptions> parser;
  /// With a parser: tags are known by their control tokens, and one that is spelled by ordinary
  /// tokens is text. False where a grammar rules the text, whose tags may be spelled.
  bool markers_are_tokens = true;
  std::vector<std::string> stop;     // without a parser
  bool include_stop_string = false;  // without a parser
  bool skip_special_tokens = true;
  bool keep_tokens = false;  // for take_tokens()
};

class Generation {
 public:
  Generation(const text::Tokenizer& tokenizer, Metrics& metrics, GenerationOptions options);

  void start(engine::SequenceHandle handle, int64_t num_prompt_tokens);

  /// Appends the events of every token there is. True when the answer has ended: then either the
  /// last event was MessageEnd, or error() says why there is none.
  bool pull(text::MessageEvents& events);

  bool ended() const { return ended_; }
  const std::optional<ApiError>& error() const { return error_; }
  const Usage& usage() const { return usage_; }
  /// The stop id that ended the answer, if one did.
  std::optional<int32_t> stop_token_id() const { return stop_token_id_; }
  /// The prompt's tokens behind its first, with their log probabilities; there before the answer's
  /// first event, and only if the sequence was asked for them.
  const std::vector<engine::TokenEvent>& prompt_tokens() const { return prompt_tokens_; }
  /// Tokens since the last call; only with keep_tokens.
  std::vector<engine::TokenEvent> take_tokens() { return std::exchange(tokens_, {}); }

 private:
  void take_token(engine::TokenEvent token, text::MessageEvents& events);
  void take_text(const std::string& text, text::TextOrigin origin, text::MessageEvents& events);
  void finish(const engine::FinishedEvent& finished, text::MessageEvents& events);
  void finish_text(text::OutputEnd end, text::MessageEvents& events);

  const text::Tokenizer& tokenizer_;
  Metrics& metrics_;
  GenerationOptions options_;
  text::Detokenizer detokenizer_;
  text::TextOrigin ordinary_;  // of ordinary tokens; kUnknown: markers are not told from text
  std::optional<text::OutputParser> parser_;
  text::StopMatcher stop_;
  engine::SequenceHandle handle_;
  engine::Clock::time_point started_;
  engine::Clock::time_point last_token_;
  std::vector<double> gaps_;  // scratch
  bool stopped_ = false;      // the text is complete; what is still sampled does not count
  bool ended_ = false;
  Usage usage_;
  std::optional<ApiError> error_;
  std::optional<int32_t> stop_token_id_;
  std::vector<engine::TokenEvent> tokens_;
  std::vector<engine::TokenEvent> prompt_tokens_;
};

}  // namespace onecard::server
