// One tile: 256 weights as a cyclic bit stream of K bits each.
//
// Stream position t = 8*lane + j (lane 0..31, j 0..7) holds the weight at
//   row (input)  2*(lane & 3) + (j & 1) + 8*((j >> 1) & 1)
//   col (output) (lane >> 2) + 8*(j >> 2)
// Its state is the 16-bit window that ends with its own K bits; the first weights look back into
// the end of the same tile. Words are read most significant bit first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/exl3/matrix.h"

namespace onecard::exl3 {

constexpr int kTileWeights = 256;

constexpr int stream_row(int t) { return 2 * (t >> 3 & 3) + (t & 1) + 8 * (t >> 1 & 1); }
constexpr int stream_col(int t) { return (t >> 5) + 8 * (t >> 2 & 1); }

/// The states of the 256 positions. `tile` has tile_bytes(bits) bytes.
void tile_states(const std::byte* tile, int bits, std::span<uint16_t, kTileWeights> states);

/// Writes each state's low `bits` bits. The inverse of tile_states for states that form a closed
/// path: state(t) = (state(t-1) << bits | new bits) & 0xFFFF, with state(-1) = state(255).
void pack_states(std::span<const uint16_t, kTileWeights> states, int bits, std::byte* tile);

/// The decoded weights, row-major [16 inputs][16 outputs]; every value is an fp16 number.
void decode_tile(const std::byte* tile, int bits, Codebook codebook,
                 std::span<float, kTileWeights> weights);

}  // namespace onecard::exl3
