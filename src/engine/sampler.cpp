#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "engine/divergence.h"

namespace onecard::engine {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

uint64_t mix(uint64_t x) {  // SplitMix64's finaliser (Steele, Lea, Flood 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

void require_range(double value, double low, double high, const char* message) {
  // Written so that NaN fails.
  require(value >= low && value <= high, ErrorCode::kInvalidArgument, message);
}

void validate(const SamplingParams& params) {
  require_range(params.temperature, 0, 100, "temperature: must be from 0 to 100");
  require(params.top_p > 0 && params.top_p <= 1, ErrorCode::kInvalidArgument,
          "top_p: must be above 0 and at most 1");
  require(params.top_k >= 0, ErrorCode::kInvalidArgument, "top_k: must not be negative");
  require_range(params.min_p, 0, 1, "min_p: must be from 0 to 1");
  require_range(params.presence_penalty, -2, 2, "presence_penalty: must be from -2 to 2");
  require_range(params.frequency_penalty, -2, 2, "frequency_penalty: must be from -2 to 2");
  require(params.repetition_penalty > 0 && std::isfinite(params.repetition_penalty),
          ErrorCode::kInvalidArgument, "repetition_penalty: must be above 0");
  require(!params.num_logprobs || *params.num_logprobs >= 0, ErrorCode::kInvalidArgument,
          "logprobs: must not be negative");
}

size_t argmax(std::span<const float> logits) {
  return size_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void require_finite(std::span<const float> logits) {
  for (const float logit : logits)
    require(!std::isnan(logit) && logit != std::numeric_limits<float>::infinity(),
            ErrorCode::kDataCorrupt, "sampling: the model's logits are not finite numbers");
}

}  // namespace

void set_logprobs(std::span<const float> raw, int32_t token, int num_top, TokenEvent& event) {
  require_finite(raw);
  const double norm = log_sum_exp(raw);
  event.logprob = float(raw[size_t(token)] - norm);
  event.token = token;
  event.rank = 1;
  for (const float logit : raw) event.rank += logit > raw[size_t(token)];
  event.top.clear();
  if (num_top == 0) return;
  std::vector<int32_t> order(raw.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = int32_t(i);
  const size_t count = std::min(size_t(num_top), raw.size());
  std::partial_sort(order.begin(), order.begin() + ptrdiff_t(count), order.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = raw[size_t(a)], y = raw[size_t(b)];
                      return x > y || (x == y && a < b);
                    });
  for (size_t i = 0; i < count; ++i)
    event.top.push_back({order[i], float(raw[size_t(order[i])] - norm)});
}

double uniform(uint64_t seed, uint64_t n) {
  constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;
  // The seed is mixed first: seeds that differ by a multiple of kGamma would share their numbers.
  return double(mix(mix(seed + kGamma) + (n + 1) * kGamma) >> 11) * 0x1p-53;
}

Sampler::Sampler(const SamplingParams& params, uint64_t seed, std::span<const int32_t> prompt,
                 std::span<const int32_t> stop_ids, int64_t min_tokens)
    : params_(params),
      seed_(seed),
      stop_ids_(stop_ids.begin(), stop_ids.end()),
      min_tokens_(min_tokens) {
  validate(params_);
  if (params_.repetition_penalty != 1) {
    prompt_ids_.assign(prompt.begin(), prompt.end());
    std::sort(prompt_ids_.begin(), prompt_ids_.end());
    prompt_ids_.erase(std::unique(prompt_ids_.begin(), prompt_ids_.end()), prompt_ids_.end());
  }
}

int32_t Sampler::sample(std::span<float> logits, TokenConstraint* constraint, TokenEvent& event) {
  require(!logits.empty(), ErrorCode::kInvalidArgument, "sampling: there are no logits");
  require_finite(logits);
  std::vector<float> raw;  // only sequences that ask for probabilities pay for the copy
  if (params_.num_logprobs) raw.assign(logits.begin(), logits.end());

  restrict(logits, constraint);
  for (const auto& [token, bias] : params_.logit_bias)
    if (token >= 0 && size_t(token) < logits.size()) logits[size_t(token)] += bias;
  penalize(logits);
  const auto best = int32_t(argmax(logits));
  if (logits[size_t(best)] == kForbidden) return -1;
  const int32_t token = params_.temperature == 0 ? best : draw(logits);

  event.token = token;
  if (params_.num_logprobs) set_logprobs(raw, token, *params_.num_logprobs, event);
  if (constraint != nullptr) constraint->accept(token);
  ++output_counts_[token];
  ++num_sampled_;
  return token;
}

void Sampler::restrict(std::span<float> logits, TokenConstraint* constraint) {
  if (constraint != nullptr) {
    allowed_.assign((logits.size() + 63) / 64, ~uint64_t{0});
    if (constraint->restrict_next(allowed_))
      for (size_t i = 0; i < logits.size(); ++i)
        if ((allowed_[i / 64] >> (i % 64) & 1) == 0) logits[i] = kForbidden;
  }
  if (params_.allowed_tokens) {
    allowed_.assign((logits.size() + 63) / 64, 0);
    for (const int32_t token : *params_.allowed_tokens)
      if (token >= 0 && size_t(token) < logits.size())
        allowed_[size_t(token) / 64] |= uint64_t{1} << (size_t(token) % 64);
    for (size_t i = 0; i < logits.size(); ++i)
      if ((allowed_[i / 64] >> (i % 64) & 1) == 0) logits[i] = kForbidden;
  }
  if (num_sampled_ < min_tokens_)
    for (const int32_t token : stop_ids_)
      if (token >= 0 && size_t(token) < logits.size()) logits[size_t(token)] = kForbidden;
}

void Sampler::penalize(std::span<float> logits) const {
  if (params_.repetition_penalty != 1) {  // Keskar et al. 2019: what was seen, in either direction
    const auto repeat = [&](int32_t token) {
      float& logit = logits[size_t(token)];
      const auto penalty = float(params_.repetition_penalty);
      logit = logit > 0 ? logit / penalty : logit * penalty;
    };
    for (const int32_t token : prompt_ids_) repeat(token);
    for (const auto& [token, count] : output_counts_)
      if (!std::binary_search(prompt_ids_.begin(), prompt_ids_.end(), token)) repeat(token);
  }
  if (params_.presence_penalty != 0 || params_.frequency_penalty != 0)
    for (const auto& [token, count] : output_counts_)
      logits[size_t(token)] -=
          float(params_.presence_penalty + params_.frequency_penalty * double(count));
}

int32_t Sampler::draw(std::span<const float> logits) {
  const double max = logits[argmax(logits)];
  const auto weight = [&](float logit) { return std::exp((logit - max) / params_.temperature); };
  const double u = uniform(seed_, uint64_t(num_sampled_));

  candidates_.clear();
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double w = weight(logits[i]);  // the likeliest token's is 1
    if (logits[i] == kForbidden || w < params_.min_p) continue;
    candidates_.push_back({logits[i], int32_t(i)});
    total += w;
  }

  const bool all =
      params_.top_p >= 1 && (params_.top_k == 0 || size_t(params_.top_k) >= candidates_.size());
  if (!all) {
    // Order as much of the head as top_k and top_p can need, more only if it turns out too short.
    const auto likelier = [](const Candidate& a, const Candidate& b) {
      return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
    };
    size_t limit = candidates_.size();
    if (params_.top_k > 0) limit = std::min(limit, size_t(params_.top_k));
    size_t sorted = std::min<size_t>(limit, 256);
    std::partial_sort(candidates_.begin(), candidates_.begin() + ptrdiff_t(sorted),
                      candidates_.end(), likelier);
    if (limit < candidates_.size()) {  // top_p is a share of what top_k leaves
      if (sorted < limit) {
        std::partial_sort(candidates_.begin(), candidates_.begin() + ptrdiff_t(limit),
                          candidates_.end(), likelier);
        sorted = limit;
      }
      candidates_.resize(limit);
      total = 0;
      for (const Candidate& c : candidates_) total += weight(c.logit);
    }
    double sum = 0;
    size_t keep = 0;
    while (keep < candidates_.size() && sum < params_.top_p * total) {
      if (keep == sorted) {
        sorted = candidates_.size();
        std::sort(candidates_.begin() + ptrdiff_t(keep), candidates_.end(), likelier);
      }
      sum += weight(candidates_[keep++].logit);
    }
    candidates_.resize(std::max<size_t>(keep, 1));
    total = sum;
  }

  double rest = u * total;
  for (const Candidate& c : candidates_) {
    rest -= weight(c.logit);
    if (rest < 0) return c.token;
  }
  return candidates_.back().token;  // rounding
}

}  // namespace onecard::engine
