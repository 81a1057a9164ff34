#include "experts/exl3_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "device/cpu/isa.h"
#include "experts/cpu_experts.h"
#include "quant/exl3/layout.h"
#include "quant/exl3/reconstruct.h"
#include "support/compare.h"
#include "support/random_exl3.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace onecard::experts {
namespace {

using onecard::cpu::Isa;
using test::random_values;
using test::RandomMatrix;

struct RandomExpert {
  RandomExpert(int64_t hidden, int64_t inner, int bits, exl3::Codebook codebook, uint32_t seed,
               int down_bits = 0)
      : gate(hidden, inner, bits, codebook, seed),
        up(hidden, inner, bits, codebook, seed + 1),
        down(inner, hidden, down_bits ? down_bits : bits, codebook, seed + 2),
        native{gate.view, up.view, down.view} {
    const exl3::ExpertLayout layout(hidden, inner, bits, bits, down.view.bits);
    record = Buffer<std::byte>(layout.record_bytes());
    layout.write(native, record.span());
    units = layout.view(record.data(), codebook);
  }
  RandomMatrix gate, up, down;
  exl3::ExpertView native, units;
  Buffer<std::byte> record;
};

// The same in f64 from the reconstructed matrices.
void add_reference(const exl3::ExpertView& expert, const float* x, float limit, float weight,
                   double* out) {
  const auto product = [](const exl3::MatrixView& w, const std::vector<double>& v) {
    std::vector<float> full(size_t(w.in_features * w.out_features));
    exl3::reconstruct(w, {full.data(), w.in_features, w.out_features});
    std::vector<double> y(size_t(w.out_features), 0.0);
    for (int64_t i = 0; i < w.in_features; ++i)
      for (int64_t o = 0; o < w.out_features; ++o)
        y[size_t(o)] += v[size_t(i)] * double(full[size_t(i * w.out_features + o)]);
    return y;
  };
  const std::vector<double> in(x, x + expert.gate.in_features);
  std::vector<double> a = product(expert.gate, in);
  const std::vector<double> b = product(expert.up, in);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = std::min(a[i], double(limit));
    a[i] =
        weight * (a[i] / (1 + std::exp(-a[i]))) * std::clamp(b[i], -double(limit), double(limit));
  }
  const std::vector<double> y = product(expert.down, a);
  for (size_t i = 0; i < y.size(); ++i) out[i] += y[i];
}

// Some experts, each chosen by some rows.
struct Job {
  std::vector<Exl3ExpertRows> work;
  std::vector<std::vector<int64_t>> rows;
  std::vector<std::vector<float>> weights;
};
Job make_job(const std::vector<const exl3::ExpertView*>& experts,
             const std::vector<std::vector<int64_t>>& rows, uint32_t seed) {
  Job job{{}, rows, {}};
  std::mt19937 rng(seed);
  for (const auto& r : rows) {
    job.weights.emplace_back();
    for (size_t i = 0; i < r.size(); ++i)
      job.weights.back().push_back(0.2f + float(rng() % 100) / 80);
  }
  for (size_t e = 0; e < experts.size(); ++e)
    job.work.push_back({*experts[e], job.rows[e], job.weights[e]});
  return job;
}

std::vector<float> run(Isa isa, ThreadPool* pool, Exl3Experts& engine, const std::vector<float>& x,
                       const Job& job) {
  const int64_t hidden = engine.options().hidden_size, tokens = int64_t(x.size()) / hidden;
  std::vector<float> out(x.size(), 0.25f);
  Exec exec;
  exec.isa = isa;
  exec.pool = pool;
  engine.forward_add(exec, {x.data(), tokens, hidden}, job.work, {out.data(), tokens, hidden});
  return out;
}

std::vector<float> reference(const std::vector<float>& x, int64_t hidden, float limit,
                             const Job& job) {
  std::vector<double> sum(x.size(), 0.25);
  for (const Exl3ExpertRows& w : job.work)
    for (size_t i = 0; i < w.rows.size(); ++i)
      add_reference(w.expert, x.data() + w.rows[i] * hidden, limit, w.weights[i],
                    sum.data() + w.rows[i] * hidden);
  return {sum.begin(), sum.end()};
}

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> rows;
  for (int64_t i = begin; i < end; ++i) rows.push_back(i);
  return rows;
}

TEST(Exl3Experts, MatchesF64EveryBitsAndCodebook) {
  const int64_t hidden = 384, inner = 256;
  for (const auto codebook : {exl3::Codebook::kMul1, exl3::Codebook::kMcg, exl3::Codebook::k3Inst})
    for (int bits = 1; bits <= 8; ++bits) {
      if (codebook != exl3::Codebook::kMul1 && bits % 3 != 0) continue;
      const RandomExpert expert(hidden, inner, bits, codebook, 10 + uint32_t(bits), bits % 8 + 1);
      Exl3Experts engine({.hidden_size = hidden, .intermediate_size = inner, .swiglu_limit = 2});
      const auto x = random_values(size_t(3 * hidden), 4);
      for (const auto* view : {&expert.native, &expert.units})
        for (const Isa isa : {Isa::kPlain, onecard::cpu::detect_isa()}) {
          const Job job = make_job({view}, {{0, 2}}, 1);
          // Three products of the integer path (see tests/ops/linear_test.cpp); f32 sums otherwise.
          const double bound = codebook == exl3::Codebook::kMul1 ? 6e-4 : 5e-6;
          EXPECT_LE(
              test::rel_rms_error(run(isa, nullptr, engine, x, job), reference(x, hidden, 2, job)),
              bound)
              << "K " << bits << " codebook " << int(codebook) << " isa " << int(isa);
        }
    }
}

// The released geometry's structure: several pieces of gate and up, many units, the default bound.
TEST(Exl3Experts, MatchesF64WithSeveralPieces) {
  const int64_t hidden = 2688, inner = 384;  // 21 blocks: two full pieces and one of a block
  const RandomExpert a(hidden, inner, 3, exl3::Codebook::kMul1, 5);
  Exl3Experts engine({.hidden_size = hidden, .intermediate_size = inner});
  const auto x = random_values(size_t(hidden), 6);
  const Job job = make_job({&a.units}, {{0}}, 3);
  std::vector<float> want = reference(x, hidden, 10, job);
  ThreadPool pool(3);
  std::vector<float> got = run(onecard::cpu::detect_isa(), &pool, engine, x, job);
  for (auto* v : {&want, &got})
    for (float& y : *v) y -= 0.25f;
  EXPECT_LE(test::rel_rms_error(got, want), 6e-4);
}

TEST(Exl3Experts, ThreadsRowsAndSchedulesChangeNothing) {
  const int64_t hidden = 1536, inner = 640;
  const RandomExpert a(hidden, inner, 3, exl3::Codebook::kMul1, 5);
  const RandomExpert b(hidden, inner, 2, exl3::Codebook::kMul1, 6, 4);
  const RandomExpert c(hidden, inner, 3, exl3::Codebook::kMcg, 7);
  const std::vector<const exl3::ExpertView*> experts{&a.units, &b.native, &c.units};
  Exl3Experts engine({.hidden_size = hidden, .intermediate_size = inner});
  const int64_t tokens = 120;
  const auto x = random_values(size_t(tokens * hidden), 8);
  ThreadPool two(2), five(5);
  for (const Isa isa : {Isa::kAvx2, onecard::cpu::detect_isa()}) {
    if (isa > onecard::cpu::detect_isa()) continue;
    // Many rows: bands, several items an expert.
    const Job many = make_job(experts, {range(0, 120), range(3, 100), range(40, 45)}, 2);
    const auto all = run(isa, &two, engine, x, many);
    EXPECT_EQ(all, run(isa, nullptr, engine, x, many));
    EXPECT_EQ(all, run(isa, &five, engine, x, many));
    // The rows 40..42 alone: units.
    for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &five}) {
      Job few = make_job(experts, {{40, 41, 42}, {40, 41, 42}, {40, 41, 42}}, 1);
      few.weights[0].assign(many.weights[0].begin() + 40, many.weights[0].begin() + 43);
      few.weights[1].assign(many.weights[1].begin() + 37, many.weights[1].begin() + 40);
      few.weights[2].assign(many.weights[2].begin(), many.weights[2].begin() + 3);
      for (size_t e = 0; e < 3; ++e) few.work[e].weights = few.weights[e];
      const auto some = run(isa, pool, engine, x, few);
      EXPECT_TRUE(std::equal(some.begin() + 40 * hidden, some.begin() + 43 * hidden,
                             all.begin() + 40 * hidden))
          << onecard::cpu::isa_name(isa);
      EXPECT_EQ(some[0], 0.25f);  // a row that no expert serves
    }
  }
}

// The engine behind the seam: routing to rows, against its own exact path.
TEST(CpuExperts, Exl3JobsMatchTheExactPath) {
  const int64_t hidden = 256, inner = 128, tokens = 11, top_k = 2;
  std::vector<std::unique_ptr<RandomExpert>> made;
  ExpertWeights weights{.num_layers = 2,
                        .experts_per_layer = 4,
                        .hidden_size = hidden,
                        .intermediate_size = inner,
                        .experts = {}};
  for (uint32_t e = 0; e < 8; ++e) {
    made.push_back(
        std::make_unique<RandomExpert>(hidden, inner, 3, exl3::Codebook::kMul1, 50 + 3 * e));
    const auto weight = [](const exl3::MatrixView& w) {
      ops::LinearWeight linear;
      linear.format = ops::LinearWeight::Format::kExl3;
      linear.in_features = w.in_features;
      linear.out_features = w.out_features;
      linear.exl3 = w;
      return linear;
    };
    const exl3::ExpertView& view = made.back()->units;
    weights.experts.push_back({weight(view.gate), weight(view.up), weight(view.down)});
  }
  CpuExperts engine(weights);
  const auto x = random_values(size_t(tokens * hidden), 77);
  std::vector<int32_t> ids;
  std::vector<float> row_weights;
  for (int32_t t = 0; t < tokens; ++t) {
    ids.insert(ids.end(), {t % 4, (t * 2 + 1 + t % 4) % 4 == t % 4 ? (t + 1) % 4 : (t + 2) % 4});
    row_weights.insert(row_weights.end(), {0.9f - 0.05f * float(t), 0.3f});
  }
  const auto run = [&](Isa isa, ThreadPool* pool) {
    std::vector<float> out(x.size(), 0.0f);
    Exec exec;
    exec.isa = isa;
    exec.pool = pool;
    engine.forward_add(exec, 1, {x.data(), tokens, hidden},
                       {{ids.data(), tokens, top_k}, {row_weights.data(), tokens, top_k}},
                       {out.data(), tokens, hidden});
    return out;
  };
  ThreadPool pool(3);
  EXPECT_LE(test::rel_rms_error(run(onecard::cpu::detect_isa(), &pool), run(Isa::kPlain, nullptr)),
            6e-4);
}

TEST(Exl3Experts, NothingToDoChangesNothing) {
  Exl3Experts engine({.hidden_size = 128, .intermediate_size = 128});
  ThreadPool pool(3);
  const std::vector<float> x(128, 1.0f);
  EXPECT_EQ(run(onecard::cpu::detect_isa(), &pool, engine, x, Job{}),
            std::vector<float>(128, 0.25f));
}

TEST(Exl3Experts, RefusesOtherShapes) {
  EXPECT_THROW(Exl3Experts({.hidden_size = 100, .intermediate_size = 128}), Error);
  const RandomExpert a(256, 128, 3, exl3::Codebook::kMul1, 5);
  Exl3Experts engine({.hidden_size = 128, .intermediate_size = 128});
  const Job job = make_job({&a.units}, {{0}}, 1);
  EXPECT_THROW(run(Isa::kPlain, nullptr, engine, std::vector<float>(128), job), Error);
}

}  // namespace
}  // namespace onecard::experts
