#include "quantize/tile_encoder.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "quant/exl3/codebook.h"
#include "support/exl3_vectors.h"

namespace onecard::quantize {
namespace {

using exl3::Codebook;
using exl3::kTileWeights;

cpu::Isa fastest() { return std::min(cpu::detect_isa(), cpu::Isa::kAvx2); }

// Row-major tile -> stream order.
std::vector<float> in_stream_order(const float* tile, float scale) {
  std::vector<float> stream(kTileWeights);
  for (int t = 0; t < kTileWeights; ++t)
    stream[size_t(t)] = scale * tile[exl3::stream_row(t) * 16 + exl3::stream_col(t)];
  return stream;
}

double mean_squared_error(std::span<const uint16_t> states, std::span<const float> targets,
                          Codebook codebook, double scale) {
  double sum = 0;
  for (size_t i = 0; i < states.size(); ++i) {
    const double error =
        (double(exl3::codebook_table(codebook)[states[i]]) - double(targets[i])) / scale;
    sum += error * error;
  }
  return sum / double(states.size());
}

std::vector<float> gaussian(int num_tiles, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size_t(num_tiles) * kTileWeights);
  for (float& value : values) value = normal(random);
  return values;
}

// Relative to the sample's energy.
double gaussian_error(Codebook codebook, int bits, float scale, int num_tiles, cpu::Isa isa) {
  TileEncoder encoder(std::make_shared<TrellisTable>(codebook, bits), isa);
  std::vector<float> targets = gaussian(num_tiles, 2024);
  double energy = 0;
  for (float& value : targets) {
    energy += double(value) * value / double(targets.size());
    value *= scale;
  }
  std::vector<uint16_t> states(targets.size());
  for (size_t at = 0; at < targets.size(); at += 2 * kTileWeights)
    encoder.encode(std::span(targets).subspan(at, 2 * kTileWeights),
                   std::span(states).subspan(at, 2 * kTileWeights));
  return mean_squared_error(states, targets, codebook, scale) / energy;
}

TEST(TileEncoder, AsGoodAsTheVectorsEncoder) {
  const auto& vectors = test::Exl3Vectors::get();
  const std::vector<float> tiles = vectors.f32("enc_tiles.f32");
  for (const json::Value& item : vectors.manifest().find("encoder")->items()) {
    const std::string book = item.find("book")->as_string();
    const Codebook codebook = book == "mul1"  ? Codebook::kMul1
                              : book == "mcg" ? Codebook::kMcg
                                              : Codebook::k3Inst;
    const auto bits = int(*item.find("K")->as_int64());
    const double scale = item.find("scale")->as_double();
    TileEncoder encoder(std::make_shared<TrellisTable>(codebook, bits), fastest());
    for (size_t tile = 0; tile < 4; ++tile) {
      const auto targets = in_stream_order(tiles.data() + tile * kTileWeights, float(scale));
      std::vector<uint16_t> states(kTileWeights);
      encoder.encode(targets, states);
      const double want = item.find("mse_per_tile")->items()[tile].as_double();
      EXPECT_LE(mean_squared_error(states, targets, codebook, scale), want * 1.01)
          << book << " K=" << bits << " tile " << tile;
    }
  }
}

// The code's relative error on Gaussian weights at its best scale. 192 tiles: the sample's own
// noise is below 1%.
TEST(TileEncoder, GaussianErrorOfTheCode) {
  if (fastest() < cpu::Isa::kAvx2) GTEST_SKIP() << "no AVX2 here: minutes without it";
  const auto within_2_percent = [](int bits, float scale, double want) {
    EXPECT_NEAR(gaussian_error(Codebook::kMul1, bits, scale, 192, fastest()), want, 0.02 * want)
        << "K=" << bits;
  };
  within_2_percent(2, 1.00f, 0.0681);
  within_2_percent(3, 0.97f, 0.0173);
  within_2_percent(4, 0.92f, 0.0044);
}

TEST(TileEncoder, PlainFindsPathsAsGood) {
  for (const int bits : {1, 3, 8}) {
    const double plain = gaussian_error(Codebook::kMul1, bits, 0.9f, 2, cpu::Isa::kPlain);
    EXPECT_NEAR(gaussian_error(Codebook::kMul1, bits, 0.9f, 2, fastest()), plain, 1e-4 * plain);
  }
}

class TileEncoderBits : public testing::TestWithParam<int> {};

TEST_P(TileEncoderBits, PathsCloseOnThemselves) {
  const int bits = GetParam();
  for (const Codebook codebook : {Codebook::k3Inst, Codebook::kMcg, Codebook::kMul1}) {
    TileEncoder encoder(std::make_shared<TrellisTable>(codebook, bits), fastest());
    const std::vector<float> targets = gaussian(2, 7);
    std::vector<uint16_t> states(targets.size());
    encoder.encode(targets, states);
    for (size_t tile = 0; tile < 2; ++tile) {
      const std::span<const uint16_t, kTileWeights> path(states.data() + tile * kTileWeights,
                                                         size_t(kTileWeights));
      std::vector<std::byte> packed(size_t(exl3::tile_bytes(bits)));
      exl3::pack_states(path, bits, packed.data());
      std::array<uint16_t, kTileWeights> read;
      exl3::tile_states(packed.data(), bits, read);
      EXPECT_TRUE(std::equal(read.begin(), read.end(), path.begin()));
      // A tile encoded alone takes the same path.
      std::vector<uint16_t> alone(kTileWeights);
      encoder.encode(std::span(targets).subspan(tile * kTileWeights, kTileWeights), alone);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), path.begin()));
    }
  }
}

// What was decoded can be encoded without any error: the path is in the trellis.
TEST_P(TileEncoderBits, DecodedTilesAreFoundAgain) {
  const int bits = GetParam();
  std::mt19937 random(unsigned(bits) + 100);
  std::vector<uint16_t> words(size_t(16 * bits));
  for (uint16_t& word : words) word = uint16_t(random());
  std::array<uint16_t, kTileWeights> states;
  exl3::tile_states(reinterpret_cast<const std::byte*>(words.data()), bits, states);
  std::vector<float> targets;
  for (const uint16_t state : states)
    targets.push_back(exl3::codebook_table(Codebook::kMul1)[state]);
  TileEncoder encoder(std::make_shared<TrellisTable>(Codebook::kMul1, bits), fastest());
  std::vector<uint16_t> found(kTileWeights);
  encoder.encode(targets, found);
  EXPECT_EQ(mean_squared_error(found, targets, Codebook::kMul1, 1), 0);
}
INSTANTIATE_TEST_SUITE_P(, TileEncoderBits, testing::Range(1, 9));

}  // namespace
}  // namespace onecard::quantize
