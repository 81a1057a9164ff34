// Routed experts on the device against the plain products of one expert after the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "cuda/device.h"
#include "cuda/random_exl3.h"
#include "ops/linear.h"
#include "ops/routed_experts.h"
#include "ops/swiglu.h"
#include "quant/exl3/reconstruct.h"
#include "support/compare.h"

namespace onecard::ops {
namespace {

using exl3::Codebook;
using test::DeviceArray;
using test::DeviceMatrix;
using test::random_values;
using test::RandomMatrix;

constexpr int64_t kHidden = 384, kIntermediate = 256;
constexpr float kLimit = 1.5f;  // low enough to bind

struct Expert {
  Expert(int bits, Codebook codebook, unsigned seed)
      : gate(kHidden, kIntermediate, bits, codebook, seed),
        up(kHidden, kIntermediate, bits, codebook, seed + 10),
        down(kIntermediate, kHidden, bits, codebook, seed + 20),
        layout(kHidden, kIntermediate, bits, bits, bits),
        record(layout.record_bytes()) {
    layout.write({gate.view, up.view, down.view}, record.span());
    on_device.emplace(std::span<const std::byte>(record.data(), size_t(record.size())));
    view = layout.view(on_device->data(), codebook);
    for (int m = 0; m < 3; ++m) {
      const exl3::MatrixView& matrix = m == 0 ? gate.view : m == 1 ? up.view : down.view;
      weight[m].format = LinearWeight::Format::kExl3;
      weight[m].in_features = matrix.in_features;
      weight[m].out_features = matrix.out_features;
      weight[m].exl3 = matrix;
    }
  }
  RandomMatrix gate, up, down;
  exl3::ExpertLayout layout;
  Buffer<std::byte> record;
  std::optional<DeviceArray<std::byte>> on_device;
  exl3::ExpertView view;
  LinearWeight weight[3];
};

struct Case {
  int64_t num_experts, tokens, per_token;
  int bits;
  Codebook codebook;
  int last_bits;  // of the last expert
  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << c.num_experts << " experts, " << c.tokens << " tokens x " << c.per_token
         << " K=" << c.bits << ", last " << c.last_bits << " codebook " << int(c.codebook);
  }
};

class CudaExperts : public test::CudaTest, public testing::WithParamInterface<Case> {};

TEST_P(CudaExperts, EqualThePlainProducts) {
  const Case c = GetParam();
  std::vector<std::unique_ptr<Expert>> experts;
  std::vector<exl3::ExpertView> views;
  for (int64_t e = 0; e < c.num_experts; ++e) {
    experts.push_back(std::make_unique<Expert>(e + 1 == c.num_experts ? c.last_bits : c.bits,
                                               c.codebook, unsigned(100 * e)));
    views.push_back(experts.back()->view);
  }
  RoutedExperts routed;
  const std::vector<std::byte> table = routed_experts_table(views, routed.instance);
  const DeviceArray<std::byte> device_table(table);
  routed.table = device_table.data();
  routed.num_experts = c.num_experts;
  routed.hidden_size = kHidden;
  routed.intermediate_size = kIntermediate;
  routed.swiglu_limit = kLimit;

  // Expert 0 takes every token, the others are drawn: long and short runs of rows.
  std::mt19937 random(5);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < c.tokens; ++t) {
    std::vector<int32_t> others(size_t(c.num_experts - 1));
    std::iota(others.begin(), others.end(), 1);
    std::shuffle(others.begin(), others.end(), random);
    ids.push_back(0);
    ids.insert(ids.end(), others.begin(), others.begin() + c.per_token - 1);
  }
  const std::vector<float> x = random_values(c.tokens * kHidden, 6);
  const std::vector<float> weights = random_values(c.tokens * c.per_token, 7, 0.5f);
  std::vector<float> want = random_values(c.tokens * kHidden, 8);
  const DeviceArray<float> device_x(x), device_weights(weights), out(want);
  const DeviceArray<int32_t> device_ids(ids);

  std::vector<float> gate(kIntermediate), up(kIntermediate), down(kHidden);
  for (int64_t t = 0; t < c.tokens; ++t)
    for (int64_t k = 0; k < c.per_token; ++k) {
      const Expert& expert = *experts[size_t(ids[size_t(t * c.per_token + k)])];
      const View<const float> row(x.data() + t * kHidden, 1, kHidden);
      const View<float> a(gate.data(), 1, kIntermediate), b(up.data(), 1, kIntermediate);
      linear({}, row, expert.weight[0], a);
      linear({}, row, expert.weight[1], b);
      swiglu({}, a, b, {weights.data() + t * c.per_token + k, 1}, kLimit, a);
      linear({}, a, expert.weight[2], {down.data(), 1, kHidden});
      for (int64_t i = 0; i < kHidden; ++i) want[size_t(t * kHidden + i)] += down[size_t(i)];
    }

  routed_experts_add(exec, routed, device_x.view(c.tokens, kHidden),
                     device_ids.view(c.tokens, c.per_token),
                     device_weights.view(c.tokens, c.per_token), out.view(c.tokens, kHidden));
  const std::vector<float> got = out.host();
  // Three products, each off by at most 64 cuts of f32 (exl3_test.cpp), and what SwiGLU makes of
  // the first two: a product of both and a slope of up to 1.1.
  EXPECT_LT(test::rel_rms_error(got, want), 4 * 64 * 0x1p-24);
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaExperts,
    testing::Values(Case{4, 1, 2, 3, Codebook::kMul1, 3}, Case{5, 3, 3, 3, Codebook::kMul1, 3},
                    Case{4, 11, 2, 5, Codebook::kMul1, 5}, Case{3, 5, 2, 4, Codebook::kMul1, 2},
                    Case{3, 9, 2, 3, Codebook::kMcg, 3},
                    Case{3, 80, 2, 3, Codebook::kMul1, 3},     // many rows, a full item and a rest
                    Case{3, 70, 2, 6, Codebook::k3Inst, 6}));  // the same, any codebook

class CudaExpertsRows : public test::CudaTest {};

TEST_F(CudaExpertsRows, DoNotKnowOfEachOther) {
  std::vector<std::unique_ptr<Expert>> experts;
  std::vector<exl3::ExpertView> views;
  for (unsigned e = 0; e < 3; ++e) {
    experts.push_back(std::make_unique<Expert>(3, Codebook::kMul1, 100 * e));
    views.push_back(experts.back()->view);
  }
  RoutedExperts routed;
  const DeviceArray<std::byte> table(routed_experts_table(views, routed.instance));
  routed.table = table.data();
  routed.num_experts = 3;
  routed.hidden_size = kHidden;
  routed.intermediate_size = kIntermediate;
  constexpr int64_t kTokens = 70;  // beyond what runs as few rows
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < kTokens; ++t) {
    ids.push_back(int32_t(t % 3));
    ids.push_back(int32_t((t + 1) % 3));
  }
  const DeviceArray<int32_t> device_ids(ids);
  const DeviceArray<float> x(random_values(kTokens * kHidden, 1)),
      weights(random_values(kTokens * 2, 2));
  const std::vector<float> zeros(kTokens * kHidden);
  const DeviceArray<float> all(zeros), few(zeros);
  const auto run = [&](const DeviceArray<float>& out, int64_t begin, int64_t end) {
    routed_experts_add(exec, routed, x.view(kTokens, kHidden).rows_between(begin, end),
                       device_ids.view(kTokens, 2).rows_between(begin, end),
                       weights.view(kTokens, 2).rows_between(begin, end),
                       out.view(kTokens, kHidden).rows_between(begin, end));
  };
  run(all, 0, kTokens);
  run(few, 0, 1);
  run(few, 1, 5);
  const std::vector<float> got_all = all.host(), got_few = few.host();
  for (size_t i = 0; i < size_t(5 * kHidden); ++i) ASSERT_EQ(got_few[i], got_all[i]) << i;
}

}  // namespace
}  // namespace onecard::ops
