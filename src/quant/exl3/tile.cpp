#include "quant/exl3/tile.h"

#include <array>
#include <cstring>

#include "quant/exl3/codebook.h"

namespace onecard::exl3 {

void tile_states(const std::byte* tile, int bits, std::span<uint16_t, kTileWeights> states) {
  std::array<uint32_t, 64> words;
  std::memcpy(words.data(), tile, size_t(tile_bytes(bits)));
  const int num_words = 8 * bits;
  for (int t = 0; t < kTileWeights; ++t) {
    const int last = (t + 1) * bits - 1 + kTileWeights * bits;  // stream bit, one turn up: positive
    const uint64_t low = words[size_t(last / 32 % num_words)];
    const uint64_t high = words[size_t((last - 15) / 32 % num_words)];  // may be the same word
    states[size_t(t)] = uint16_t((high << 32 | low) >> (31 - last % 32));
  }
}

void pack_states(std::span<const uint16_t, kTileWeights> states, int bits, std::byte* tile) {
  std::array<uint32_t, 64> words{};
  for (int t = 0; t < kTileWeights; ++t)
    for (int b = 0; b < bits; ++b) {
      const int at = t * bits + b;
      const uint32_t bit = states[size_t(t)] >> (bits - 1 - b) & 1;
      words[size_t(at / 32)] |= bit << (31 - at % 32);
    }
  std::memcpy(tile, words.data(), size_t(tile_bytes(bits)));
}

void decode_tile(const std::byte* tile, int bits, Codebook codebook,
                 std::span<float, kTileWeights> weights) {
  std::array<uint16_t, kTileWeights> states;
  tile_states(tile, bits, states);
  const float* table = codebook_table(codebook);
  for (int t = 0; t < kTileWeights; ++t)
    weights[size_t(stream_row(t) * kTileDim + stream_col(t))] = table[states[size_t(t)]];
}

}  // namespace onecard::exl3
