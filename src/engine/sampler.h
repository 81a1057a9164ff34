// From logits to the next token. One Sampler for each sequence; the engine thread alone uses it.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"

namespace onecard::engine {

/// The n-th of a stream of uniform numbers in [0, 1), as a function of seed and n alone: a token
/// depends neither on other sequences nor on how often anything was drawn before.
double uniform(uint64_t seed, uint64_t n);

/// Fills `event` for `token`, which follows where `logits` [vocab_size] were computed: its log
/// probability and rank, and the `num_top` likeliest, ties to the lower id.
void set_logprobs(std::span<const float> logits, int32_t token, int num_top, TokenEvent& event);

class Sampler {
 public:
  /// Throws kInvalidArgument naming the parameter that is out of range. `prompt` counts for the
  /// repetition penalty. `stop_ids` may not be sampled before `min_tokens` tokens.
  Sampler(const SamplingParams& params, uint64_t seed, std::span<const int32_t> prompt,
          std::span<const int32_t> stop_ids, int64_t min_tokens);

  /// Chooses the next token from `logits` [vocab_size], which it overwrites, and records it. Order:
  /// what is allowed (constraint, allowed_tokens, min_tokens), bias, penalties, temperature, min_p,
  /// top_k, top_p. Ties go to the lower id. Negative when nothing is allowed. Logits that are not
  /// numbers throw kDataCorrupt.
  int32_t sample(std::span<float> logits, TokenConstraint* constraint, TokenEvent& event);

 private:
  void restrict(std::span<float> logits, TokenConstraint* constraint);
  void penalize(std::span<float> logits) const;
  int32_t draw(std::span<const float> logits);

  SamplingParams params_;
  uint64_t seed_;
  std::vector<int32_t> stop_ids_;
  int64_t min_tokens_;
  int64_t num_sampled_ = 0;
  std::unordered_map<int32_t, int64_t> output_counts_;
  std::vector<int32_t> prompt_ids_;  // distinct; kept only when the repetition penalty needs them
  std::vector<uint64_t> allowed_;    // scratch
  struct Candidate {
    float logit;
    int32_t token;
  };
  std::vector<Candidate> candidates_;  // scratch
};

}  // namespace onecard::engine
