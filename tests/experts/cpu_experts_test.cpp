#include "experts/cpu_experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "quant/exl3/layout.h"
#include "support/compare.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace onecard::experts {
namespace {

using Format = ops::LinearWeight::Format;

constexpr int64_t kHidden = 128, kInner = 256, kExperts = 5, kPerToken = 2, kTokens = 150;
constexpr float kLimit = 1.5f;  // binds

/// Experts of one layer, plain or EXL3, and a routing that leaves one of them out.
struct Fixture {
  explicit Fixture(bool exl3) : random(7), x(noise(kTokens * kHidden, 1)) {
    weights.num_layers = 2;
    weights.experts_per_layer = kExperts;
    weights.hidden_size = kHidden;
    weights.intermediate_size = kInner;
    weights.swiglu_limit = kLimit;
    for (int64_t i = 0; i < 2 * kExperts; ++i)
      weights.experts.push_back(exl3
                                    ? exl3_expert()
                                    : ExpertMatrices{plain(kInner, kHidden), plain(kInner, kHidden),
                                                     plain(kHidden, kInner)});
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto first = int32_t(t % 2 == 0 ? 0 : 1 + t % 3);
      ids.push_back(first);
      ids.push_back(first == 3 ? 0 : 3);  // expert 4 has no rows
      route_weights.push_back(0.25f + float(t % 5));
      route_weights.push_back(1.5f);
    }
  }

  std::vector<float> noise(int64_t size, float sigma) {
    std::normal_distribution<float> normal(0, sigma);
    std::vector<float> values(static_cast<size_t>(size));
    for (float& value : values) value = normal(random);
    return values;
  }

  ops::LinearWeight plain(int64_t out, int64_t in) {
    plain_values.push_back(
        std::make_unique<std::vector<float>>(noise(out * in, 1 / std::sqrt(float(in)))));
    ops::LinearWeight weight;
    weight.in_features = in;
    weight.out_features = out;
    weight.data = plain_values.back()->data();
    return weight;
  }

  exl3::MatrixView random_trellis(int64_t in, int64_t out) {
    tiles.emplace_back(in * out / 256 * exl3::tile_bytes(3));
    for (std::byte& byte : tiles.back().span()) byte = std::byte(random());
    const auto scales = [&](int64_t size, float scale) {
      words.push_back(std::make_unique<std::vector<uint16_t>>());
      for (int64_t i = 0; i < size; ++i)
        words.back()->push_back(f32_to_f16(random() % 2 == 0 ? scale : -scale));
      return std::span<const uint16_t>(*words.back());
    };
    exl3::MatrixView matrix;
    matrix.in_features = in;
    matrix.out_features = out;
    matrix.bits = 3;
    matrix.data = tiles.back().data();
    matrix.suh = scales(in, 1 / std::sqrt(float(in)));
    matrix.svh = scales(out, 1);
    return matrix;
  }

  ExpertMatrices exl3_expert() {
    const exl3::ExpertView native{random_trellis(kHidden, kInner), random_trellis(kHidden, kInner),
                                  random_trellis(kInner, kHidden)};
    const exl3::ExpertLayout layout(kHidden, kInner, 3, 3, 3);
    records.emplace_back(layout.record_bytes());
    layout.write(native, records.back().span());
    const exl3::ExpertView view = layout.view(records.back().data(), exl3::Codebook::kMul1);
    const auto weight = [](const exl3::MatrixView& matrix) {
      ops::LinearWeight result;
      result.format = Format::kExl3;
      result.in_features = matrix.in_features;
      result.out_features = matrix.out_features;
      result.exl3 = matrix;
      return result;
    };
    return {weight(view.gate), weight(view.up), weight(view.down)};
  }

  /// Adds tokens [begin, end) of layer 1 to a copy of `base`.
  std::vector<float> run(const Exec& exec, CpuExperts& engine, int64_t begin, int64_t end,
                         const std::vector<float>& base) {
    std::vector<float> out = base;
    const int64_t count = end - begin;
    const Routing routing{
        View<const int32_t>(ids.data() + begin * kPerToken, count, kPerToken),
        View<const float>(route_weights.data() + begin * kPerToken, count, kPerToken)};
    engine.forward_add(exec, 1, View<const float>(x.data() + begin * kHidden, count, kHidden),
                       routing, View<float>(out.data(), count, kHidden));
    return out;
  }

  std::mt19937 random;
  std::vector<std::unique_ptr<std::vector<float>>> plain_values;
  std::vector<std::unique_ptr<std::vector<uint16_t>>> words;
  std::vector<Buffer<std::byte>> tiles, records;
  ExpertWeights weights;
  std::vector<float> x;
  std::vector<int32_t> ids;
  std::vector<float> route_weights;
};

TEST(CpuExperts, EqualsTheFormula) {
  Fixture fixture(false);
  CpuExperts engine(fixture.weights);
  const std::vector<float> base = fixture.noise(kTokens * kHidden, 1);
  const std::vector<float> got = fixture.run({}, engine, 0, kTokens, base);
  std::vector<float> want;
  for (int64_t t = 0; t < kTokens; ++t) {
    std::vector<double> sum(base.begin() + t * kHidden, base.begin() + (t + 1) * kHidden);
    for (int64_t k = 0; k < kPerToken; ++k) {
      const ExpertMatrices& expert = fixture.weights.at(1, fixture.ids[size_t(t * kPerToken + k)]);
      const auto product = [](const ops::LinearWeight& w, const std::vector<double>& in) {
        const auto* values = static_cast<const float*>(w.data);
        std::vector<double> out(size_t(w.out_features), 0.0);
        for (int64_t o = 0; o < w.out_features; ++o)
          for (int64_t i = 0; i < w.in_features; ++i)
            out[size_t(o)] += values[o * w.in_features + i] * in[size_t(i)];
        return out;
      };
      const std::vector<double> in(fixture.x.begin() + t * kHidden,
                                   fixture.x.begin() + (t + 1) * kHidden);
      const std::vector<double> gate = product(expert.gate, in), up = product(expert.up, in);
      std::vector<double> hidden;
      for (size_t i = 0; i < gate.size(); ++i) {
        const double a = std::min(gate[i], double(kLimit));
        hidden.push_back(fixture.route_weights[size_t(t * kPerToken + k)] * a / (1 + std::exp(-a)) *
                         std::clamp(up[i], -double(kLimit), double(kLimit)));
      }
      const std::vector<double> out = product(expert.down, hidden);
      for (size_t c = 0; c < out.size(); ++c) sum[c] += out[c];
    }
    for (const double value : sum) want.push_back(float(value));
  }
  // The plain path rounds gate, up, hidden and the product to f32 once each.
  EXPECT_LE(test::max_rel_error(got, want), 8 * 6e-8);
}

TEST(CpuExperts, RowsDoNotDependOnEachOtherOrOnThreads) {
  for (const bool exl3 : {false, true}) {
    Fixture fixture(exl3);
    CpuExperts engine(fixture.weights);
    ThreadPool pool(3);
    const std::vector<float> zeros(kTokens * kHidden, 0.0f);
    for (const cpu::Isa isa : {cpu::Isa::kPlain, cpu::detect_isa()}) {
      const std::vector<float> all =
          fixture.run({.isa = isa, .pool = &pool}, engine, 0, kTokens, zeros);
      for (const int64_t t : {0, 1, 64, 149}) {
        const std::vector<float> one =
            fixture.run({.isa = isa}, engine, t, t + 1, std::vector<float>(kHidden, 0.0f));
        EXPECT_EQ(one,
                  std::vector<float>(all.begin() + t * kHidden, all.begin() + (t + 1) * kHidden))
            << "token " << t << ", exl3 " << exl3 << ", " << cpu::isa_name(isa);
      }
    }
  }
}

// The kernels that never decode a whole matrix against the plain path.
TEST(CpuExperts, Exl3KernelsAgreeWithThePlainPath) {
  Fixture fixture(true);
  CpuExperts engine(fixture.weights);
  const std::vector<float> zeros(kTokens * kHidden, 0.0f);
  const std::vector<float> plain = fixture.run({}, engine, 0, kTokens, zeros);
  const auto error = [&](CpuExperts& fast) {
    return test::rel_rms_error(fixture.run({.isa = cpu::detect_isa()}, fast, 0, kTokens, zeros),
                               plain);
  };
  // f32 through three products and four transforms: experts of this size are computed exactly.
  EXPECT_LE(error(engine), 5e-6);
  // 15-bit activations and the codebook's exact centre: 0.06% relative RMS is what the format's
  // kernels promise for an expert.
  CpuExperts int16(fixture.weights, ops::Exl3Precision::kInt16);
  EXPECT_LE(error(int16), 6e-4);
  if (cpu::detect_isa() != cpu::Isa::kPlain) {
    EXPECT_GE(error(int16), 5e-5);  // or it was not int16
  }
  // And the other way round, on one engine.
  engine.set_precision(ops::Exl3Precision::kInt16);
  EXPECT_EQ(error(engine), error(int16));
  engine.set_precision(std::nullopt);
  EXPECT_LE(error(engine), 5e-6);
}

TEST(CpuExperts, TheObserverSeesEveryHiddenRow) {
  Fixture fixture(true);
  CpuExperts engine(fixture.weights);
  int64_t rows = 0;
  engine.set_observer([&](int64_t layer_idx, int64_t expert_id, View<const float> hidden) {
    EXPECT_EQ(layer_idx, 1);
    EXPECT_NE(expert_id, 4);
    EXPECT_EQ(hidden.cols, kInner);
    rows += hidden.rows;
  });
  fixture.run({.isa = cpu::detect_isa()}, engine, 0, kTokens,
              std::vector<float>(kTokens * kHidden, 0.0f));
  EXPECT_EQ(rows, kTokens * kPerToken);
}

// A choice of kernels, prefetch and threads may change the time that a result takes, never the
// result.
TEST(CpuExperts, ChoosingTheFastestChangesNoResult) {
  Fixture fixture(true);
  CpuExperts chosen(fixture.weights), untouched(fixture.weights);
  const std::vector<float> zeros(kTokens * kHidden, 0.0f);
  const cpu::Isa isa = cpu::detect_isa();
  const std::vector<int> counts{3, 2};
  const auto timing = chosen.choose_fastest(isa, counts);
  ThreadPool pool(timing ? timing->num_threads : 1);
  EXPECT_EQ(fixture.run({.isa = isa, .pool = &pool}, chosen, 0, kTokens, zeros),
            fixture.run({.isa = isa, .pool = &pool}, untouched, 0, kTokens, zeros));
  EXPECT_EQ(timing.has_value(), isa != cpu::Isa::kPlain);
  if (!timing) return;
  EXPECT_TRUE(timing->prefetch_bytes == 0 || timing->prefetch_bytes == 3072);
  // All experts of this model together: packed bits of three matrices each.
  EXPECT_EQ(timing->store_bytes, int64_t(fixture.weights.experts.size()) * 3 * kHidden * kInner *
                                     fixture.weights.experts[0].gate.exl3.bits / 8);
  // So few bytes never come from memory, and say nothing about threads.
  EXPECT_EQ(timing->source, ExpertTiming::Source::kCache);
  EXPECT_EQ(timing->timed_threads, std::vector<int>{3});
  EXPECT_EQ(timing->num_threads, 3);
  EXPECT_NEAR(timing->bytes_per_second * timing->us_per_expert * 1e-6,
              double(timing->store_bytes) / double(fixture.weights.experts.size()), 1);
  EXPECT_GT(timing->read_bytes_per_second, 0);
}

TEST(CpuExperts, ThereIsNothingToChooseOnThePlainPathOrForOtherFormats) {
  const std::vector<int> counts{1};
  Fixture exl3(true), plain(false);
  EXPECT_FALSE(CpuExperts(exl3.weights).choose_fastest(cpu::Isa::kPlain, counts));
  EXPECT_FALSE(CpuExperts(plain.weights).choose_fastest(cpu::detect_isa(), counts));
}

TEST(CpuExperts, RefusesBadShapes) {
  Fixture fixture(false);
  CpuExperts engine(fixture.weights);
  std::vector<float> x(100), out(100);
  EXPECT_THROW(engine.forward_add({}, 0, View<const float>(x.data(), 1, 100), {},
                                  View<float>(out.data(), 1, 100)),
               Error);
}

}  // namespace
}  // namespace onecard::experts
