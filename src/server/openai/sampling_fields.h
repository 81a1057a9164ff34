// The fields that chat completions, completions and tokenless protocols share: how to sample, when
// to stop, what to send back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/fields.h"

namespace onecard::server::openai {

struct GenerationFields {
  engine::SamplingParams sampling;  // but for num_logprobs
  int n = 1;
  std::optional<int64_t> max_tokens;  // none: the rest of the context
  int64_t min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool include_stop_string = false;
  bool ignore_eos = false;
  std::vector<std::string> bad_words;
  std::string cache_salt;
  bool skip_special_tokens = true;

  bool stream = false;
  bool include_usage = false;           // a chunk with the usage at the end
  bool continuous_usage_stats = false;  // usage on every chunk
  std::optional<int> prompt_logprobs;   // of the prompt's tokens, and of so many others
  bool return_token_ids = false;
  bool tokens_as_token_ids = false;  // log probabilities name tokens "token_id:N"
};

constexpr int kMaxStopStrings = 16;
constexpr int kMaxChoices = 128;
constexpr int kMaxTopLogprobs = 20;

// Parts of it, for protocols with names of their own.
void read_temperature_and_top_p(const Fields& fields, engine::SamplingParams& sampling);
std::vector<std::string> read_stop_strings(const Fields& fields, std::string_view key);

/// Throws kInvalidArgument, or kUnsupported for a field that is known and not implemented.
/// `least_max_tokens`: the smallest limit that makes sense.
GenerationFields read_generation_fields(const Fields& fields, int64_t least_max_tokens = 1);

}  // namespace onecard::server::openai
