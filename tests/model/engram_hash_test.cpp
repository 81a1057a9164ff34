#include "model/engram_hash.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "model/numpy_random.h"

namespace onecard::model {
namespace {

constexpr int64_t kMaxInt64 = 9223372036854775807;

std::vector<int64_t> multipliers(int64_t layer_idx, int64_t num_ids) {
  std::vector<int64_t> result =
      numpy_integers(uint64_t(10007 * layer_idx), kMaxInt64 / num_ids / 2, 4);
  for (int64_t& value : result) value = 2 * value + 1;
  return result;
}

// Against numpy's own default_rng(10007 * layer).integers().
TEST(NumpyIntegers, MultipliersOfSeveralCheckpoints) {
  EXPECT_EQ(multipliers(7, 1234), (std::vector<int64_t>{6614797318849763, 5603089090029281,
                                                        6008401439192703, 556301742589773}));
  EXPECT_EQ(multipliers(2, 50), (std::vector<int64_t>{151625563810655747, 73521914385542303,
                                                      44883494579647979, 141552034018048629}));
  EXPECT_EQ(multipliers(1, 99092),
            (std::vector<int64_t>{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ(multipliers(14, 99092),
            (std::vector<int64_t>{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
  EXPECT_THROW(numpy_integers(1, int64_t{1} << 32, 1), Error);
}

ModelConfig released() {
  ModelConfig config;
  config.vocab_size = 100;
  config.engram_layer_ids = {1, 14};
  config.engram_pad_token_id = 2;
  return config;
}

/// Compressed ids as the published hash values have them; the map itself does not matter to them.
EngramHash released_hash() {
  std::vector<int32_t> map(100, 0);
  map[2] = 2;
  return {released(), map, "map"};
}

TEST(EngramHash, PrimesOfTheRelease) {
  const EngramHash hash = released_hash();
  EXPECT_EQ(hash.num_rows(0), 384006168);
  EXPECT_EQ(hash.num_rows(1), 384016682);
  EXPECT_EQ(hash.primes(0).front(), 16000057);
  EXPECT_EQ(hash.primes(0).back(), 16000463);
  EXPECT_EQ(hash.primes(1).front(), 16000477);
  EXPECT_EQ(hash.primes(1).back(), 16000889);
}

TEST(EngramHash, RowsOfTheRelease) {
  const EngramHash hash = released_hash();
  const std::vector<int32_t> ids{0, 100, 2000, 30000, 99091, 7};
  const auto rows = [&](int64_t engram_idx, int t) {
    std::vector<int32_t> recent;
    for (int k = 0; k <= std::min(t, 3); ++k) recent.push_back(ids[size_t(t - k)]);
    std::vector<int64_t> out(24);
    hash.rows(engram_idx, recent, out);
    return std::vector<int64_t>{out[0], out[7], out[8], out[16], out[23]};
  };
  using Rows = std::vector<int64_t>;
  EXPECT_EQ(rows(0, 0), (Rows{5702652, 121476532, 131476717, 257520185, 380066193}));
  EXPECT_EQ(rows(1, 0), (Rows{14361964, 120604547, 132225184, 261362261, 372375971}));
  EXPECT_EQ(rows(0, 1), (Rows{537542, 117667871, 135374644, 259850483, 380889905}));
  EXPECT_EQ(rows(1, 1), (Rows{15202927, 119076549, 143916130, 265425859, 374545588}));
  EXPECT_EQ(rows(0, 3), (Rows{10901611, 126724473, 134977998, 267083179, 368359025}));
  EXPECT_EQ(rows(1, 3), (Rows{6647556, 120724185, 129906893, 266439613, 380673764}));
  EXPECT_EQ(rows(0, 5), (Rows{8234977, 112926537, 136227804, 263266523, 378854006}));
  EXPECT_EQ(rows(1, 5), (Rows{7732697, 117401764, 136362208, 260209131, 375836491}));
}

TEST(EngramHash, PadIsTheCompressedIdOfThePadToken) {
  ModelConfig config = released();
  config.engram_layer_ids = {1, 4};
  config.engram_vocab_size = 64;
  config.engram_n_heads = 2;
  config.engram_compressed_vocab_size = 50;
  std::vector<int32_t> map;
  for (int i = 0; i < 100; ++i) map.push_back(7 * i % 50);
  const EngramHash hash(config, map, "map");
  std::vector<int64_t> out(6);
  hash.rows(0, std::vector<int32_t>{27}, out);
  EXPECT_EQ(out, (std::vector<int64_t>{27, 80, 206, 265, 297, 430}));
  hash.rows(1, std::vector<int32_t>{9, 33, 27}, out);  // newest first
  EXPECT_EQ(out, (std::vector<int64_t>{0, 114, 263, 329, 511, 571}));
}

TEST(EngramHash, RefusesAForeignMap) {
  EXPECT_THROW(EngramHash(released(), std::vector<int32_t>(99, 0), "map"), Error);
  std::vector<int32_t> map(100, 0);
  map[50] = 99092;
  EXPECT_THROW(EngramHash(released(), map, "map"), Error);
  map[50] = -1;
  EXPECT_THROW(EngramHash(released(), map, "map"), Error);
}

}  // namespace
}  // namespace onecard::model
