// Router, SwiGLU, compressor, n-gram gate and embedding: hand-worked values, and the instruction
// sets against each other.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/compressor.h"
#include "ops/cpu_isas.h"
#include "ops/embedding.h"
#include "ops/engram_gate.h"
#include "ops/router.h"
#include "ops/swiglu.h"
#include "support/compare.h"

namespace onecard::ops {
namespace {

double score(double logit) { return std::sqrt(std::log1p(std::exp(logit))); }

TEST(Router, BiasSelectsButDoesNotWeigh) {
  const std::vector<float> logits{1, 2, 3, 0};
  const std::vector<float> bias{5, 0, 0, 0};
  std::vector<int32_t> ids(2);
  std::vector<float> weights(2);
  route({}, View<const float>(logits.data(), 1, 4), bias, {}, View<int32_t>(ids.data(), 1, 2),
        View<float>(weights.data(), 1, 2));
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 2}));
  const double sum = score(1) + score(3);
  EXPECT_NEAR(weights[0], 1.5 * score(1) / sum, 1e-6);
  EXPECT_NEAR(weights[1], 1.5 * score(3) / sum, 1e-6);
}

TEST(Router, EqualScoresTakeTheLowerId) {
  const std::vector<float> logits{0, 7, 0, 7, 7}, bias(5, 0.0f);
  std::vector<int32_t> ids(3);
  std::vector<float> weights(3);
  route({}, View<const float>(logits.data(), 1, 5), bias, {}, View<int32_t>(ids.data(), 1, 3),
        View<float>(weights.data(), 1, 3));
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 3, 4}));
  ids.resize(4);
  weights.resize(4);
  route({}, View<const float>(logits.data(), 1, 5), bias, {}, View<int32_t>(ids.data(), 1, 4),
        View<float>(weights.data(), 1, 4));
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 3, 4, 0}));
}

TEST(Router, OneExpertIsNotNormalisedAndLargeLogitsStayFinite) {
  const std::vector<float> logits{1, 1000}, bias(2, 0.0f);
  std::vector<int32_t> id(1);
  std::vector<float> weight(1);
  route({}, View<const float>(logits.data(), 1, 2), bias, {.routed_scaling_factor = 2},
        View<int32_t>(id.data(), 1, 1), View<float>(weight.data(), 1, 1));
  EXPECT_EQ(id[0], 1);
  EXPECT_NEAR(weight[0], 2 * std::sqrt(1000.0), 1e-4);
}

TEST(Router, TemperatureDividesTheLogitsAndTheSumMayBeLeftOut) {
  const std::vector<float> logits{1, 2, 3, 0}, bias(4, 0.0f);
  std::vector<int32_t> ids(2);
  std::vector<float> weights(2);
  route({}, View<const float>(logits.data(), 1, 4), bias,
        {.norm_topk_prob = false, .routed_scaling_factor = 2, .gate_temp = 4},
        View<int32_t>(ids.data(), 1, 2), View<float>(weights.data(), 1, 2));
  EXPECT_EQ(ids, (std::vector<int32_t>{2, 1}));
  EXPECT_NEAR(weights[0], 2 * score(0.75), 1e-6);
  EXPECT_NEAR(weights[1], 2 * score(0.5), 1e-6);
}

TEST(Swiglu, ClampsTheGateFromAboveOnlyAndTheUpOnBothSides) {
  const std::vector<float> gate{20, -20, 1, 1, 0, -1, 3, 2, 9}, up{1, 1, 20, -20, 5, 2, 0, 1, 1};
  const std::vector<float> weights{0.5f};
  std::vector<double> want;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double a = std::min(gate[i], 10.0f), b = std::clamp(up[i], -10.0f, 10.0f);
    want.push_back(0.5 * a / (1 + std::exp(-a)) * b);
  }
  for (const cpu::Isa isa : test::cpu_isas()) {
    std::vector<float> out(gate.size());
    swiglu({.isa = isa}, View<const float>(gate.data(), 1, 9), View<const float>(up.data(), 1, 9),
           weights, 10, View<float>(out.data(), 1, 9));
    // exp to about 1 ulp, one division, two products
    for (size_t i = 0; i < out.size(); ++i)
      EXPECT_NEAR(out[i], want[i], std::fabs(want[i]) * 6 * 6e-8) << cpu::isa_name(isa) << i;
  }
}

TEST(PoolGroups, EveryChannelHasItsOwnSoftmax) {
  const std::vector<float> keys{1, 10, 3, 30}, gates{0, 100, std::log(3.0f), 0};
  std::vector<float> out(2);
  pool_groups({}, View<const float>(keys.data(), 2, 2), View<const float>(gates.data(), 2, 2), 2,
              View<float>(out.data(), 1, 2));
  EXPECT_NEAR(out[0], 0.25 * 1 + 0.75 * 3, 1e-6);
  EXPECT_NEAR(out[1], 10, 1e-6);
}

TEST(EngramGate, AddsTheValueByAgreement) {
  // One stream of two channels: x = (3, 4), key = (1, 1), qk = (1, 2).
  const std::vector<float> key_val{1, 1, 10, 20}, qk{1, 2};
  for (const float sign : {1.0f, -1.0f}) {
    const double d = sign * 11 / std::sqrt(12.5) / std::sqrt(2.0);
    const double gate = 1 / (1 + std::exp(-std::copysign(std::sqrt(std::fabs(d)), d)));
    for (const cpu::Isa isa : test::cpu_isas()) {
      std::vector<float> x{3 * sign, 4 * sign};
      engram_gate_add({.isa = isa}, View<const float>(key_val.data(), 1, 4), qk, 0,
                      View<float>(x.data(), 1, 2));
      EXPECT_NEAR(x[0], 3 * sign + gate * 10, 1e-5);
      EXPECT_NEAR(x[1], 4 * sign + gate * 20, 1e-5);
    }
  }
}

TEST(Embed, RowsOfEveryPlainFormat) {
  const std::vector<float> f32{1, 2, 3, 4};
  const std::vector<uint16_t> bf16{0x3f80, 0x4000, 0x4040, 0x4080};
  const std::vector<uint16_t> f16{0x3c00, 0x4000, 0x4200, 0x4400};
  using Format = LinearWeight::Format;
  for (const auto& [format, data] : {std::pair<Format, const void*>{Format::kF32, f32.data()},
                                     std::pair<Format, const void*>{Format::kBf16, bf16.data()},
                                     std::pair<Format, const void*>{Format::kF16, f16.data()}}) {
    LinearWeight table;
    table.format = format;
    table.in_features = 2;
    table.out_features = 2;
    table.data = data;
    std::vector<float> out(4);
    embed({}, table, std::vector<int32_t>{1, 0}, View<float>(out.data(), 2, 2));
    EXPECT_EQ(out, (std::vector<float>{3, 4, 1, 2}));
    EXPECT_THROW(embed({}, table, std::vector<int32_t>{2, 0}, View<float>(out.data(), 2, 2)),
                 Error);
    EXPECT_THROW(embed({}, table, std::vector<int32_t>{0, -1}, View<float>(out.data(), 2, 2)),
                 Error);
  }
}

}  // namespace
}  // namespace onecard::ops
