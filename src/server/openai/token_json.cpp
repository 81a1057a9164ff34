#include "server/openai/token_json.h"

#include <algorithm>
#include <cmath>

#include "text/detokenizer.h"

namespace onecard::server::openai {
namespace {

json::Value token_json(int32_t token, double logprob, const text::Tokenizer& tokenizer,
                       bool as_id) {
  json::Value bytes = json::Value::array();
  for (const char c : known_bytes(token, tokenizer))
    bytes.items().push_back(json::Value::integer(static_cast<unsigned char>(c)));
  return json::Value::object({{"token", json::Value::string(shown_token(token, tokenizer, as_id))},
                              {"logprob", logprob_json(logprob)},
                              {"bytes", std::move(bytes)}});
}

}  // namespace

std::string_view known_bytes(int32_t token, const text::Tokenizer& tokenizer) {
  return token < tokenizer.vocab_size() ? tokenizer.token_bytes(token) : std::string_view();
}

std::string shown_token(int32_t token, const text::Tokenizer& tokenizer, bool as_id) {
  if (as_id) return "token_id:" + std::to_string(token);
  std::string text;
  if (token >= tokenizer.vocab_size()) return text;
  text::Detokenizer detokenizer(tokenizer);
  detokenizer.push(token, text);
  detokenizer.finish(text);
  return text;
}

json::Value logprob_json(double logprob) {
  // JSON has no infinity; what cannot be sampled is at least this unlikely.
  return json::Value::real(std::isfinite(logprob) ? logprob : -9999.0);
}

json::Value logprobs_json(std::span<const engine::TokenEvent> tokens,
                          const text::Tokenizer& tokenizer, bool tokens_as_ids) {
  json::Value list = json::Value::array();
  for (const engine::TokenEvent& token : tokens) {
    json::Value top = json::Value::array();
    for (const engine::TokenLogprob& other : token.top)
      top.items().push_back(token_json(other.token, other.logprob, tokenizer, tokens_as_ids));
    json::Value entry = token_json(token.token, token.logprob, tokenizer, tokens_as_ids);
    entry.set("top_logprobs", std::move(top));
    list.items().push_back(std::move(entry));
  }
  return list;
}

json::Value prompt_logprobs_json(std::span<const engine::TokenEvent> prompt_tokens, int num_top,
                                 const text::Tokenizer& tokenizer) {
  json::Value list = json::Value::array({json::Value()});
  for (const engine::TokenEvent& token : prompt_tokens) {
    json::Value entry = json::Value::object();
    const auto add = [&](int32_t id, double logprob, int64_t rank) {
      entry.set(std::to_string(id),
                json::Value::object(
                    {{"logprob", logprob_json(logprob)},
                     {"rank", json::Value::integer(rank)},
                     {"decoded_token", json::Value::string(shown_token(id, tokenizer, false))}}));
    };
    add(token.token, token.logprob, token.rank);
    for (size_t i = 0; i < std::min(token.top.size(), size_t(num_top)); ++i)
      if (token.top[i].token != token.token)
        add(token.top[i].token, token.top[i].logprob, int64_t(i) + 1);
    list.items().push_back(std::move(entry));
  }
  return list;
}

json::Value ids_json(std::span<const int32_t> ids) {
  json::Value list = json::Value::array();
  for (const int32_t id : ids) list.items().push_back(json::Value::integer(id));
  return list;
}

json::Value ids_json(std::span<const engine::TokenEvent> tokens) {
  json::Value list = json::Value::array();
  for (const engine::TokenEvent& token : tokens)
    list.items().push_back(json::Value::integer(token.token));
  return list;
}

Usage total_usage(const std::vector<Choice>& choices) {
  Usage total;
  if (!choices.empty()) total = choices.front().generation.usage();
  for (size_t i = 1; i < choices.size(); ++i) {
    total.completion_tokens += choices[i].generation.usage().completion_tokens;
    total.reasoning_tokens += choices[i].generation.usage().reasoning_tokens;
  }
  return total;
}

std::optional<int32_t> told_stop_id(std::optional<int32_t> stop_token_id,
                                    std::span<const int32_t> asked_for) {
  if (stop_token_id &&
      std::find(asked_for.begin(), asked_for.end(), *stop_token_id) != asked_for.end())
    return stop_token_id;
  return std::nullopt;
}

}  // namespace onecard::server::openai
