#include "quantize/calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "io/file.h"
#include "support/temp_dir.h"

namespace onecard::quantize {
namespace {

PackItem item(const std::string& source, int64_t out, int64_t in, int64_t row_begin = 0) {
  PackItem it;
  it.kind = PackItem::Kind::kQuantize;
  it.name = it.source = source;
  it.source_rows = out;
  it.row_begin = row_begin;
  it.out_features = out;
  it.in_features = in;
  return it;
}

std::vector<float> random_values(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// sum over rows of x x^T, in f64.
std::vector<double> moments(const std::vector<float>& x, int64_t stride, int64_t begin, int64_t n) {
  std::vector<double> sums(size_t(n * n));
  for (size_t row = 0; row < x.size(); row += size_t(stride))
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j)
        sums[size_t(i * n + j)] +=
            double(x[row + size_t(begin + i)]) * double(x[row + size_t(begin + j)]);
  return sums;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-3) << i;
}

// A checkpoint with one expert: hidden 4, intermediate 3.
class CalibrationTest : public testing::Test {
 protected:
  CalibrationTest() {
    const std::vector<io::TensorSpec> tensors{
        {"layers.2.ffn.experts.1.w1.weight", DType::kF32, {3, 4}},
        {"layers.2.ffn.experts.1.w3.weight", DType::kF32, {3, 4}}};
    io::SafetensorsWriter writer(temp_.path(), io::plan_shards(tensors, 1 << 20));
    writer.append(tensors[0].name, std::as_bytes(std::span(w1_)));
    writer.append(tensors[1].name, std::as_bytes(std::span(w3_)));
    writer.finish();
    config_.num_hidden_layers = 5;
    config_.hidden_size = 4;
    config_.o_groups = 2;
    config_.swiglu_limit = 1.0;
  }

  test::TempDir temp_;
  Exec exec_;
  model::ModelConfig config_;
  std::vector<float> w1_ = random_values(12, 1), w3_ = random_values(12, 2);
};

TEST_F(CalibrationTest, MomentsGoToTheMatricesThatReadTheInput) {
  const io::Checkpoint source = io::Checkpoint::open(temp_.path());
  Calibration calibration(exec_, source, config_);
  const auto attn = random_values(6 * 4, 3), more = random_values(700 * 4, 4),
             heads = random_values(5 * 8, 5), head = random_values(3 * 4, 6);
  calibration.observe(2, "attn_in", {attn.data(), 6, 4});
  calibration.observe(2, "attn_in", {more.data(), 700, 4});  // more than one product
  calibration.observe(3, "attn_in", {more.data(), 1, 4});
  calibration.observe(2, "o_heads", {heads.data(), 5, 8});
  calibration.observe(5, "head_in", {head.data(), 3, 4});
  calibration.observe(2, "layer_out", {head.data(), 3, 4});

  auto both = attn;
  both.insert(both.end(), more.begin(), more.end());
  const auto want = moments(both, 4, 0, 4);
  for (const char* name : {"attn.wq_a", "attn.wkv", "attn.compressor.wkv", "attn.compressor.wgate"})
    expect_near(calibration.of(item(std::string("layers.2.") + name, 8, 4)), want);
  // wo_a is block-diagonal: slice 1 reads columns 4..7.
  expect_near(calibration.of(item("layers.2.attn.wo_a", 16, 4, 0)), moments(heads, 8, 0, 4));
  expect_near(calibration.of(item("layers.2.attn.wo_a", 16, 4, 16)), moments(heads, 8, 4, 4));
  expect_near(calibration.of(item("head", 10, 4)), moments(head, 4, 0, 4));
  EXPECT_TRUE(calibration.of(item("mtp.0.attn.wq_a", 8, 4)).empty());
  EXPECT_TRUE(calibration.of(item("layers.4.attn.wq_a", 8, 4)).empty());
}

TEST_F(CalibrationTest, AnExpertsHiddenComesFromItsOwnGateAndUp) {
  const io::Checkpoint source = io::Checkpoint::open(temp_.path());
  Calibration calibration(exec_, source, config_);
  auto x = random_values(20 * 4, 7);
  calibration.observe(2, "ffn_in", {x.data(), 20, 4});
  std::vector<float> hidden;
  for (int64_t t = 0; t < 20; ++t)
    for (int64_t i = 0; i < 3; ++i) {
      double gate = 0, up = 0;
      for (int64_t k = 0; k < 4; ++k) {
        gate += double(w1_[size_t(i * 4 + k)]) * x[size_t(t * 4 + k)];
        up += double(w3_[size_t(i * 4 + k)]) * x[size_t(t * 4 + k)];
      }
      gate = std::min(gate, 1.0);
      hidden.push_back(float(gate / (1 + std::exp(-gate)) * std::clamp(up, -1.0, 1.0)));
    }
  expect_near(calibration.of(item("layers.2.ffn.experts.1.w2", 4, 3)), moments(hidden, 3, 0, 3));
  expect_near(calibration.of(item("layers.2.ffn.experts.1.w3", 3, 4)), moments(x, 4, 0, 4));
}

TEST_F(CalibrationTest, RowsThatAreNotFiniteAreLeftOut) {
  const io::Checkpoint source = io::Checkpoint::open(temp_.path());
  Calibration calibration(exec_, source, config_);
  auto x = random_values(3 * 4, 8);
  x[5] = std::nanf("");
  calibration.observe(2, "q_latent", {x.data(), 3, 4});
  x.erase(x.begin() + 4, x.begin() + 8);
  expect_near(calibration.of(item("layers.2.attn.wq_b", 8, 4)), moments(x, 4, 0, 4));
}

}  // namespace
}  // namespace onecard::quantize
