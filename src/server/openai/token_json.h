// How answers show tokens: their ids, their log probabilities, what ended them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "server/answer_exchange.h"
#include "server/usage.h"
#include "text/tokenizer.h"

namespace onecard::server::openai {

/// What a token stands for; nothing for ids that the model has and the tokenizer does not know.
std::string_view known_bytes(int32_t token, const text::Tokenizer& tokenizer);
/// The text of a token, with U+FFFD for what is no text; or "token_id:N".
std::string shown_token(int32_t token, const text::Tokenizer& tokenizer, bool as_id);

/// [{"token", "logprob", "bytes", "top_logprobs"}], for chats.
json::Value logprobs_json(std::span<const engine::TokenEvent> tokens,
                          const text::Tokenizer& tokenizer, bool tokens_as_ids);
/// [null, {"id": {"logprob", "rank", "decoded_token"}, ...}, ...]: nothing for a prompt's first
/// token, then each token with the `num_top` likeliest in its place.
json::Value prompt_logprobs_json(std::span<const engine::TokenEvent> prompt_tokens, int num_top,
                                 const text::Tokenizer& tokenizer);
json::Value logprob_json(double logprob);  // always a finite number

json::Value ids_json(std::span<const int32_t> ids);
json::Value ids_json(std::span<const engine::TokenEvent> tokens);

/// Of all choices of one prompt: the prompt counts once.
Usage total_usage(const std::vector<Choice>& choices);

/// The stop id, if the request asked for it: the model's own end of turn is no reason to name.
std::optional<int32_t> told_stop_id(std::optional<int32_t> stop_token_id,
                                    std::span<const int32_t> asked_for);

}  // namespace onecard::server::openai
