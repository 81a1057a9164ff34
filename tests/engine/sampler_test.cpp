#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "base/error.h"

namespace onecard::engine {
namespace {

// Shares of tokens over many draws of independent samplers.
std::map<int32_t, double> shares(const SamplingParams& params, const std::vector<float>& logits) {
  constexpr int kDraws = 20000;
  std::map<int32_t, double> result;  // counts first: a share of all is then exactly 1
  for (int i = 0; i < kDraws; ++i) {
    Sampler sampler(params, uint64_t(i), {}, {}, 0);
    std::vector<float> copy = logits;
    TokenEvent event;
    ++result[sampler.sample(copy, nullptr, event)];
  }
  for (auto& [token, share] : result) share /= kDraws;
  return result;
}

std::vector<float> logs(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(float(std::log(p) + 3));
  return logits;
}

// Five standard deviations of a share of 20000 draws.
double tolerance(double p) { return 5 * std::sqrt(p * (1 - p) / 20000); }

struct Case {
  const char* name;
  SamplingParams params;
  std::vector<double> expected;  // by hand, from probabilities .4 .3 .2 .1
};
void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }
class SamplerShares : public testing::TestWithParam<Case> {};

TEST_P(SamplerShares, FollowTheDefinition) {
  const Case& c = GetParam();
  auto got = shares(c.params, logs({0.2, 0.4, 0.1, 0.3}));
  const std::vector<int32_t> by_probability = {1, 3, 0, 2};
  for (size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(got[by_probability[i]], c.expected[i], tolerance(c.expected[i]));
}

INSTANTIATE_TEST_SUITE_P(
    , SamplerShares,
    testing::Values(
        Case{"plain", {}, {0.4, 0.3, 0.2, 0.1}},
        // squares .16 .09 .04 .01 over .30
        Case{"temperature_half", {.temperature = 0.5}, {.16 / .3, .3, .04 / .3, .01 / .3}},
        Case{"greedy", {.temperature = 0}, {1, 0, 0, 0}},
        Case{"top_k", {.top_k = 2}, {4. / 7, 3. / 7, 0, 0}},
        // the smallest set that reaches .65
        Case{"top_p", {.top_p = 0.65}, {4. / 7, 3. / 7, 0, 0}},
        Case{"top_p_inside_first", {.top_p = 0.01}, {1, 0, 0, 0}},
        // of what top_k leaves, 4/9 3/9 2/9, two reach .7
        Case{"top_k_then_top_p", {.top_p = 0.7, .top_k = 3}, {4. / 7, 3. / 7, 0, 0}},
        // .1 is below half of .4
        Case{"min_p", {.min_p = 0.45}, {4. / 9, 3. / 9, 2. / 9, 0}},
        Case{"allowed", {.allowed_tokens = {{3, 2}}}, {0, .75, 0, .25}},
        Case{"bias", {.logit_bias = {{2, 100.f}}}, {0, 0, 0, 1}}));

// Forces a beginning.
class Forced final : public TokenConstraint {
 public:
  explicit Forced(std::span<const int32_t> tokens) : tokens_(tokens) {}
  bool restrict_next(std::span<uint64_t> allowed) override {
    if (next_ >= tokens_.size()) return false;
    std::fill(allowed.begin(), allowed.end(), 0);
    allowed[0] = uint64_t{1} << tokens_[next_];
    return true;
  }
  void accept(int32_t) override { ++next_; }

 private:
  std::span<const int32_t> tokens_;
  size_t next_ = 0;
};

// The distribution of the next token by the definitions, one after the other over the whole
// vocabulary, in the order that sampler.h gives.
std::vector<double> plain_distribution(const SamplingParams& params, std::vector<double> logits,
                                       const std::vector<int32_t>& prompt,
                                       const std::vector<int32_t>& said) {
  const size_t vocab = logits.size();
  const double never = -std::numeric_limits<double>::infinity();
  if (params.allowed_tokens)
    for (size_t i = 0; i < vocab; ++i)
      if (std::count(params.allowed_tokens->begin(), params.allowed_tokens->end(), int32_t(i)) == 0)
        logits[i] = never;
  for (const auto& [token, bias] : params.logit_bias) logits[size_t(token)] += double(bias);
  for (size_t i = 0; i < vocab; ++i) {
    const auto times = double(std::count(said.begin(), said.end(), int32_t(i)));
    if (times > 0 || std::count(prompt.begin(), prompt.end(), int32_t(i)) > 0)
      logits[i] = logits[i] > 0 ? logits[i] / params.repetition_penalty
                                : logits[i] * params.repetition_penalty;
    if (times > 0) logits[i] -= params.presence_penalty + params.frequency_penalty * times;
  }
  std::vector<double> p(vocab);
  const double top = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < vocab; ++i) p[i] = std::exp((logits[i] - top) / params.temperature);
  for (double& weight : p)
    if (weight < params.min_p) weight = 0;  // the likeliest has 1
  std::vector<size_t> order(vocab);
  for (size_t i = 0; i < vocab; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  if (params.top_k > 0)
    for (size_t i = size_t(params.top_k); i < vocab; ++i) p[order[i]] = 0;
  double total = 0, sum = 0;
  for (const double weight : p) total += weight;
  for (const size_t i : order) {
    if (sum >= params.top_p * total) p[i] = 0;
    sum += p[i];
  }
  total = 0;
  for (const double weight : p) total += weight;
  for (double& weight : p) weight /= total;
  return p;
}

TEST(Sampler, AnyCombinationFollowsThePlainDefinition) {
  std::mt19937 random(11);
  const auto number = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const auto maybe = [&] { return random() % 2 == 0; };
  for (int round = 0; round < 40; ++round) {
    SamplingParams params;
    params.temperature = number(0.3, 2);
    if (maybe()) params.top_p = number(0.2, 1);
    if (maybe()) params.top_k = 1 + int64_t(random() % 12);
    if (maybe()) params.min_p = number(0, 0.3);
    if (maybe()) params.presence_penalty = number(-2, 2);
    if (maybe()) params.frequency_penalty = number(-2, 2);
    if (maybe()) params.repetition_penalty = number(0.5, 2);
    if (maybe()) params.logit_bias = {{3, 1.5f}, {9, -2.f}};
    if (maybe()) params.allowed_tokens = {{0, 2, 3, 5, 7, 9, 11, 13, 15}};
    std::vector<float> logits(16);
    for (float& logit : logits) logit = float(number(-3, 3));
    const std::vector<int32_t> prompt = {1, 3, 3, 5};
    const std::vector<int32_t> said = {5, 0, 5};
    const auto expected =
        plain_distribution(params, std::vector<double>(logits.begin(), logits.end()), prompt, said);
    constexpr int kDraws = 3000;
    std::vector<double> got(logits.size());
    for (int draw = 0; draw < kDraws; ++draw) {
      Sampler sampler(params, uint64_t(round * kDraws + draw), prompt, {}, 0);
      Forced forced(said);
      TokenEvent event;
      int32_t token = -1;
      for (size_t i = 0; i <= said.size(); ++i) {
        std::vector<float> copy = logits;
        token = sampler.sample(copy, &forced, event);
      }
      got[size_t(token)] += 1.0 / kDraws;
    }
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], expected[i],
                  5 * std::sqrt(expected[i] * (1 - expected[i]) / kDraws) + 1e-9)
          << "round " << round << ", token " << i;
  }
}

TEST(Sampler, WideHeadsAreOrderedBeyondTheFirstGuess) {
  // 1000 equal tokens: top_p 0.5 keeps the 500 with the lowest ids.
  const auto got = shares({.top_p = 0.5}, std::vector<float>(1000, 1.0f));
  for (const auto& [token, share] : got) EXPECT_LT(token, 500);
  EXPECT_GT(got.size(), 490u);
  const auto head = shares({.top_k = 400}, std::vector<float>(1000, 1.0f));
  for (const auto& [token, share] : head) EXPECT_LT(token, 400);
}

TEST(Sampler, TheSameSeedGivesTheSameTokens) {
  const auto run = [](uint64_t seed) {
    Sampler sampler({}, seed, {}, {}, 0);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 50; ++i) {
      std::vector<float> logits(1000, 0.0f);
      TokenEvent event;
      tokens.push_back(sampler.sample(logits, nullptr, event));
    }
    return tokens;
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7), run(8));
  EXPECT_NE(run(7)[0], run(7)[1]);  // it moves on
}

TEST(Sampler, PenaltiesCountWhatWasSaid) {
  std::vector<float> logits = {2, 1.9f, 1.8f};
  TokenEvent event;
  const auto next = [&](Sampler& sampler) {
    std::vector<float> copy = logits;
    return sampler.sample(copy, nullptr, event);
  };
  Sampler presence({.temperature = 0, .presence_penalty = 0.15}, 0, {}, {}, 0);
  EXPECT_EQ(next(presence), 0);
  EXPECT_EQ(next(presence), 1);
  EXPECT_EQ(next(presence), 0);  // 1.85, 1.75, 1.8: said once or twice is the same
  EXPECT_EQ(next(presence), 0);
  Sampler frequency({.temperature = 0, .frequency_penalty = 0.15}, 0, {}, {}, 0);
  EXPECT_EQ(next(frequency), 0);
  EXPECT_EQ(next(frequency), 1);
  EXPECT_EQ(next(frequency), 0);
  EXPECT_EQ(next(frequency), 2);  // 1.7, 1.75, 1.8
  const std::vector<int32_t> prompt = {0, 0, 1};
  Sampler repetition({.temperature = 0, .repetition_penalty = 1.2}, 0, prompt, {}, 0);
  EXPECT_EQ(next(repetition), 2);  // 1.67, 1.58, 1.8
  EXPECT_EQ(next(repetition), 0);  // ..., 1.5
  logits = {-1, -1.1f, -1.3f};
  Sampler negative({.temperature = 0, .repetition_penalty = 1.2}, 0, std::vector<int32_t>{0}, {},
                   0);
  EXPECT_EQ(next(negative), 1);  // -1.2: a penalty never helps
}

TEST(Sampler, LogprobsAreOfTheModelsOwnDistribution) {
  Sampler sampler({.temperature = 0, .logit_bias = {{2, 100.f}}, .num_logprobs = 2}, 0, {}, {}, 0);
  std::vector<float> logits = logs({0.2, 0.4, 0.1, 0.3});
  TokenEvent event;
  EXPECT_EQ(sampler.sample(logits, nullptr, event), 2);
  EXPECT_NEAR(event.logprob, std::log(0.1), 1e-6);
  EXPECT_EQ(event.rank, 4);
  ASSERT_EQ(event.top.size(), 2u);
  EXPECT_EQ(event.top[0].token, 1);
  EXPECT_NEAR(event.top[0].logprob, std::log(0.4), 1e-6);
  EXPECT_EQ(event.top[1].token, 3);
}

TEST(Sampler, LogitsThatAreNoNumbersAreCorruptData) {
  Sampler sampler({}, 0, {}, {}, 0);
  std::vector<float> logits = {1, std::numeric_limits<float>::quiet_NaN()};
  TokenEvent event;
  EXPECT_THROW(sampler.sample(logits, nullptr, event), Error);
}

TEST(Sampler, ParametersOutOfRangeAreRefusedByName) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<SamplingParams, std::string>> cases = {
      {{.temperature = -0.1}, "temperature"},
      {{.temperature = nan}, "temperature"},
      {{.top_p = 0}, "top_p"},
      {{.top_p = nan}, "top_p"},
      {{.top_k = -1}, "top_k"},
      {{.min_p = 1.5}, "min_p"},
      {{.presence_penalty = 3}, "presence"},
      {{.frequency_penalty = -3}, "frequency"},
      {{.repetition_penalty = 0}, "repetition"}};
  for (const auto& [params, name] : cases) {
    try {
      Sampler sampler(params, 0, {}, {}, 0);
      ADD_FAILURE() << name << " accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), testing::StartsWith(name));
    }
  }
}

TEST(Uniform, IsEvenAndSeedsAreUnrelated) {
  double sum = 0;
  double product = 0;
  constexpr int kCount = 100000;
  for (uint64_t n = 0; n < kCount; ++n) {
    const double a = uniform(1, n);
    ASSERT_GE(a, 0);
    ASSERT_LT(a, 1);
    sum += a;
    // A seed one step of the sequence further on: must not be the same numbers shifted by one.
    product += (uniform(1 + 0x9e3779b97f4a7c15, n) - 0.5) * (uniform(1, n + 1) - 0.5);
  }
  EXPECT_NEAR(sum / kCount, 0.5, 5 * std::sqrt(1.0 / 12 / kCount));
  EXPECT_NEAR(product / kCount, 0, 5.0 / 12 / std::sqrt(kCount));
}

}  // namespace
}  // namespace onecard::engine
