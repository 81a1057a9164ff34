// The format against vectors made by an independent implementation (tests/golden/exl3).
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "quant/exl3/codebook.h"
#include "quant/exl3/hadamard.h"
#include "quant/exl3/layout.h"
#include "quant/exl3/reconstruct.h"
#include "quant/exl3/tile.h"
#include "support/compare.h"
#include "support/exl3_vectors.h"
#include "tensor/dtype.h"

namespace onecard::exl3 {
namespace {

constexpr std::array kCodebooks{Codebook::k3Inst, Codebook::kMcg, Codebook::kMul1};

const std::byte* bytes_of(const std::vector<uint16_t>& words) {
  return reinterpret_cast<const std::byte*>(words.data());
}

// A matrix of random words: every word is a valid trellis.
struct RandomMatrix {
  RandomMatrix(int64_t in, int64_t out, int bits, unsigned seed)
      : words(size_t(in / 16 * (out / 16) * 16 * bits)), suh(size_t(in)), svh(size_t(out)) {
    std::mt19937 random(seed);
    for (uint16_t& word : words) word = uint16_t(random());
    for (uint16_t& s : suh) s = f32_to_f16(0.02f + 1e-4f * float(random() % 100));
    for (uint16_t& s : svh) s = f32_to_f16(-1.0f + 1e-2f * float(random() % 200));
    view.in_features = in;
    view.out_features = out;
    view.bits = bits;
    view.data = bytes_of(words);
    view.suh = suh;
    view.svh = svh;
  }
  std::vector<uint16_t> words, suh, svh;
  MatrixView view;
};

void expect_same_matrix(const MatrixView& got, const MatrixView& want) {
  std::vector<float> a(size_t(want.in_features * want.out_features)), b(a.size());
  decode_inner(got, {a.data(), want.in_features, want.out_features});
  decode_inner(want, {b.data(), want.in_features, want.out_features});
  EXPECT_EQ(a, b);
  EXPECT_TRUE(std::equal(got.suh.begin(), got.suh.end(), want.suh.begin(), want.suh.end()));
  EXPECT_TRUE(std::equal(got.svh.begin(), got.svh.end(), want.svh.begin(), want.svh.end()));
}

TEST(Exl3Codebook, AllStatesBitExact) {
  for (const Codebook codebook : kCodebooks) {
    const auto want = test::Exl3Vectors::get().f16_bits(
        "codebook_" + std::string(codebook_name(codebook)) + ".f16");
    for (int state = 0; state < kNumStates; ++state) {
      ASSERT_EQ(codebook_f16(codebook, uint16_t(state)), want[size_t(state)])
          << codebook_name(codebook) << " state " << state;
      ASSERT_EQ(codebook_table(codebook)[state], f16_to_f32(want[size_t(state)]));
    }
  }
}

TEST(Exl3Codebook, Mul1AffineFormIsTheRoundedValue) {
  // |value| < 4, so that half an fp16 step is at most 2^-10.
  for (int state = 0; state < kNumStates; ++state) {
    const uint32_t p = uint32_t(state) * kMul1Multiplier;
    const int sum = int(p & 0xFF) + int(p >> 8 & 0xFF) + int(p >> 16 & 0xFF) + int(p >> 24);
    ASSERT_NEAR(codebook_table(Codebook::kMul1)[state], kMul1Scale * sum + kMul1Offset, 1.0 / 1024);
  }
}

class Exl3Tile : public testing::TestWithParam<int> {};

TEST_P(Exl3Tile, StatesAndWeightsBitExact) {
  const auto& vectors = test::Exl3Vectors::get();
  const int bits = GetParam();
  const std::string name = "tile_k" + std::to_string(bits);
  const auto words = vectors.u16(name + "_words.u16");
  const auto want_states = vectors.u16(name + "_states.u16");
  for (size_t tile = 0; tile < 2; ++tile) {
    const std::byte* const packed = bytes_of(words) + int64_t(tile) * tile_bytes(bits);
    std::array<uint16_t, kTileWeights> states;
    tile_states(packed, bits, states);
    EXPECT_TRUE(std::equal(states.begin(), states.end(), want_states.begin() + 256 * long(tile)));
    std::vector<std::byte> repacked(size_t(tile_bytes(bits)));
    pack_states(states, bits, repacked.data());
    EXPECT_EQ(std::memcmp(repacked.data(), packed, repacked.size()), 0);
    for (const Codebook codebook : kCodebooks) {
      const auto want = vectors.f16(name + "_" + codebook_name(codebook) + ".f16");
      std::array<float, kTileWeights> weights;
      decode_tile(packed, bits, codebook, weights);
      EXPECT_TRUE(std::equal(weights.begin(), weights.end(), want.begin() + 256 * long(tile)))
          << codebook_name(codebook);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(, Exl3Tile, testing::Range(1, 9));

TEST(Exl3Hadamard, MatchesAndInverts) {
  const auto in = test::Exl3Vectors::get().f32("had_in.f32");
  const auto want = test::Exl3Vectors::get().f64("had_out.f64");
  std::vector<double> wide(in.begin(), in.end());
  std::vector<float> narrow = in;
  hadamard(std::span<double>(wide));
  hadamard(std::span<float>(narrow));
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(wide[i], want[i], 1e-13);
    EXPECT_NEAR(narrow[i], want[i], 1e-5);
  }
  hadamard(std::span<double>(wide));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(wide[i], in[i], 1e-13);
}

TEST(Exl3Reconstruct, WholeMatrix) {
  const auto& vectors = test::Exl3Vectors::get();
  const auto words = vectors.u16("lin_a_trellis.u16");
  const auto suh = vectors.f16_bits("lin_a_suh.f16"), svh = vectors.f16_bits("lin_a_svh.f16");
  MatrixView matrix;
  matrix.in_features = 256;
  matrix.out_features = 128;
  matrix.bits = 3;
  matrix.data = bytes_of(words);
  matrix.suh = suh;
  matrix.svh = svh;
  std::vector<float> w(256 * 128);
  reconstruct(matrix, {w.data(), 256, 128});
  EXPECT_LE(test::max_rel_error(w, vectors.f32("lin_a_w.f32")), 1e-6);
}

TEST(Exl3Reconstruct, RefusesWhatIsNoMatrix) {
  RandomMatrix source(128, 128, 3, 1);
  std::vector<float> w(128 * 128);
  const View<float> out(w.data(), 128, 128);
  MatrixView bad = source.view;
  bad.bits = 9;
  EXPECT_THROW(decode_inner(bad, out), Error);
  bad = source.view;
  bad.in_features = 64;
  EXPECT_THROW(decode_inner(bad, out), Error);
  bad = source.view;
  bad.svh = bad.svh.first(16);
  EXPECT_THROW(decode_inner(bad, out), Error);
}

TEST(Exl3Layout, EveryOrderHoldsTheSameMatrix) {
  for (int bits = 1; bits <= 8; ++bits) {
    const RandomMatrix source(256, 384, bits, 7u + unsigned(bits));
    for (const Layout layout : {Layout::kNative, Layout::kBand, Layout::kKBlock}) {
      const int64_t groups = layout == Layout::kBand ? 3 : layout == Layout::kKBlock ? 2 : 1;
      const int64_t stride = group_bytes(256, 384, bits, layout) + 32;  // room between the groups
      std::vector<std::byte> memory(size_t(groups * stride));
      const MatrixView copy = reorder(source.view, layout, memory.data(), stride);
      expect_same_matrix(copy, source.view);
      std::vector<std::byte> back(source.words.size() * 2);
      reorder(copy, Layout::kNative, back.data(), 0);
      EXPECT_EQ(std::memcmp(back.data(), source.words.data(), back.size()), 0);
    }
  }
}

TEST(Exl3Layout, BandAndKBlockOrder) {
  // A band holds 128 outputs: [in/128][8 out-tiles][8 in-tiles]; a k-block [out/16][8 in-tiles].
  RandomMatrix source(256, 256, 3, 3);
  MatrixView band = source.view;
  band.layout = Layout::kBand;
  band.group_stride_bytes = group_bytes(256, 256, 3, Layout::kBand);
  EXPECT_EQ(band.tile(0, 0) - band.data, 0);
  EXPECT_EQ(band.tile(1, 0) - band.data, 96);
  EXPECT_EQ(band.tile(0, 1) - band.data, 8 * 96);
  EXPECT_EQ(band.tile(8, 0) - band.data, 64 * 96);
  EXPECT_EQ(band.tile(0, 8) - band.data, 128 * 96);
  MatrixView block = source.view;
  block.layout = Layout::kKBlock;
  block.group_stride_bytes = group_bytes(256, 256, 3, Layout::kKBlock);
  EXPECT_EQ(block.tile(1, 0) - block.data, 96);
  EXPECT_EQ(block.tile(0, 1) - block.data, 8 * 96);
  EXPECT_EQ(block.tile(8, 0) - block.data, 128 * 96);
}

TEST(Exl3Layout, RealExpertSizes) {
  const ExpertLayout layout(5120, 2304, 3, 3, 3);
  EXPECT_EQ(layout.num_units(), 18);
  EXPECT_EQ(layout.unit_bytes(), 737280);
  EXPECT_EQ(layout.scales_offset() + layout.scales_bytes(), 13315584);
  EXPECT_EQ(layout.record_bytes(), 13316096);
}

TEST(Exl3Layout, ExpertRecordKeepsAllThree) {
  const RandomMatrix gate(384, 256, 3, 11), up(384, 256, 2, 12), down(256, 384, 4, 13);
  const ExpertLayout layout(384, 256, 3, 2, 4);
  // The record lies between guards: nothing is written outside.
  std::vector<std::byte> memory(size_t(layout.record_bytes()) + 128, std::byte{0xA5});
  layout.write({gate.view, up.view, down.view},
               std::span(memory).subspan(64, size_t(layout.record_bytes())));
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(memory[i], std::byte{0xA5});
    EXPECT_EQ(memory[memory.size() - 1 - i], std::byte{0xA5});
  }
  const ExpertView expert = layout.view(memory.data() + 64, Codebook::kMul1);
  expect_same_matrix(expert.gate, gate.view);
  expect_same_matrix(expert.up, up.view);
  expect_same_matrix(expert.down, down.view);
  // Unit 1 holds band 1 of gate and up, and k-block 1 of down.
  const std::byte* const unit = memory.data() + 64 + layout.unit_bytes();
  EXPECT_EQ(expert.gate.tile(0, 8), unit);
  EXPECT_EQ(expert.up.tile(0, 8), unit + 24 * 8 * 96);
  EXPECT_EQ(expert.down.tile(8, 0), unit + 24 * 8 * (96 + 64));
}

TEST(Exl3Legacy, Signs) {
  const auto words = test::Exl3Vectors::get().u16("signs_packed.u16");
  std::vector<uint16_t> scales(16 * words.size());
  unpack_signs(words, scales);
  EXPECT_EQ(scales, test::Exl3Vectors::get().f16_bits("signs_unpacked.f16"));
}

}  // namespace
}  // namespace onecard::exl3
