#include "server/openai/sampling_fields.h"

#include <charconv>
#include <limits>

#include "base/error.h"

namespace onecard::server::openai {
namespace {

// {"id": bias}, the ids as strings.
std::vector<std::pair<int32_t, float>> read_logit_bias(const Fields& fields) {
  std::vector<std::pair<int32_t, float>> bias;
  const json::Value* value = fields.object("logit_bias");
  if (value == nullptr) return bias;
  for (const auto& [key, number] : value->members()) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0)
      fields.refuse("logit_bias", "its keys have to be token ids");
    if (!number.is_number() || !(number.as_double() >= -100 && number.as_double() <= 100))
      fields.refuse("logit_bias", "its values have to be numbers from -100 to 100");
    bias.emplace_back(token, float(number.as_double()));
  }
  return bias;
}

// Known fields that mean something else than nothing and are not implemented.
void refuse_unsupported(const Fields& fields) {
  const auto refuse = [&](std::string_view key) {
    throw Error(ErrorCode::kUnsupported, fields.name(key) + ": is not supported");
  };
  if (fields.boolean("use_beam_search").value_or(false)) refuse("use_beam_search");
  if (fields.integer("best_of", 1).value_or(1) != 1) refuse("best_of");
  if (fields.integer("priority", std::numeric_limits<int64_t>::min()).value_or(0) != 0)
    refuse("priority");
  for (const std::string_view key :
       {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"})
    if (fields.find(key) != nullptr) refuse(key);
}

}  // namespace

void read_temperature_and_top_p(const Fields& fields, engine::SamplingParams& sampling) {
  sampling.temperature = fields.number("temperature", 0, 2).value_or(1);
  sampling.top_p = fields.number("top_p", 0, 1).value_or(1);
  if (sampling.top_p == 0) fields.refuse("top_p", "has to be above 0 and at most 1");
}

std::vector<std::string> read_stop_strings(const Fields& fields, std::string_view key) {
  std::vector<std::string> stop = fields.string_list(key);
  if (stop.size() > kMaxStopStrings)
    fields.refuse(key, "has to hold at most " + std::to_string(kMaxStopStrings) + " strings");
  for (const std::string& text : stop)
    if (text.empty()) fields.refuse(key, "must not hold an empty string");
  return stop;
}

GenerationFields read_generation_fields(const Fields& fields, int64_t least_max_tokens) {
  refuse_unsupported(fields);
  GenerationFields out;
  engine::SamplingParams& sampling = out.sampling;
  read_temperature_and_top_p(fields, sampling);
  const int64_t top_k = fields.integer("top_k", -1).value_or(0);
  sampling.top_k = top_k == -1 ? 0 : top_k;
  sampling.min_p = fields.number("min_p", 0, 1).value_or(0);
  sampling.presence_penalty = fields.number("presence_penalty", -2, 2).value_or(0);
  sampling.frequency_penalty = fields.number("frequency_penalty", -2, 2).value_or(0);
  sampling.repetition_penalty = fields.number("repetition_penalty", 0, 1e6).value_or(1);
  if (sampling.repetition_penalty == 0) fields.refuse("repetition_penalty", "has to be above 0");
  if (const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min()))
    sampling.seed = uint64_t(*seed);
  sampling.logit_bias = read_logit_bias(fields);
  sampling.allowed_tokens = fields.token_ids("allowed_token_ids");
  if (sampling.allowed_tokens && sampling.allowed_tokens->empty())
    fields.refuse("allowed_token_ids", "must not be empty");

  out.n = int(fields.integer("n", 1, kMaxChoices).value_or(1));
  out.max_tokens = fields.limit("max_completion_tokens", least_max_tokens);
  if (const auto max_tokens = fields.limit("max_tokens", least_max_tokens); !out.max_tokens)
    out.max_tokens = max_tokens;
  out.min_tokens = fields.limit("min_tokens", 0).value_or(0);
  if (out.max_tokens && out.min_tokens > *out.max_tokens)
    fields.refuse("min_tokens", "has to be at most max_tokens");
  out.stop = read_stop_strings(fields, "stop");
  out.stop_token_ids = fields.token_ids("stop_token_ids").value_or(std::vector<int32_t>());
  out.include_stop_string = fields.boolean("include_stop_str_in_output").value_or(false);
  out.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  out.bad_words = fields.string_list("bad_words");
  for (const std::string& word : out.bad_words)
    if (word.empty()) fields.refuse("bad_words", "must not hold an empty string");
  if (const auto salt = fields.string("cache_salt")) {
    if (salt->empty()) fields.refuse("cache_salt", "must not be empty");
    out.cache_salt = *salt;
  }
  out.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);

  out.stream = fields.boolean("stream").value_or(false);
  if (const json::Value* options = fields.object("stream_options")) {
    if (!out.stream) fields.refuse("stream_options", "needs stream to be true");
    const Fields stream_fields(*options, fields.name("stream_options"));
    out.include_usage = stream_fields.boolean("include_usage").value_or(false);
    out.continuous_usage_stats = stream_fields.boolean("continuous_usage_stats").value_or(false);
  }
  if (const auto num_top = fields.integer("prompt_logprobs", 0, kMaxTopLogprobs)) {
    if (out.stream) fields.refuse("prompt_logprobs", "needs stream to be false");
    out.prompt_logprobs = int(*num_top);
  }
  out.return_token_ids = fields.boolean("return_token_ids").value_or(false);
  out.tokens_as_token_ids = fields.boolean("return_tokens_as_token_ids").value_or(false);
  fields.string("user");
  fields.string("request_id");
  return out;
}

}  // namespace onecard::server::openai
