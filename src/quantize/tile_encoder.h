// Finds the trellis path of one tile: tail-biting Viterbi, exact in two passes.
//
// A node is the low 16-K bits of a state; the edge s leads from node s >> K to node s mod 2^(16-K)
// and costs (value(s) - x_t)^2. Pass 1 runs half a turn ahead with all start nodes free and finds
// the node before position 0; pass 2 is forced to begin and end there, so that the path closes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/cpu/isa.h"
#include "quant/exl3/matrix.h"
#include "quant/exl3/tile.h"

namespace onecard::quantize {

/// What encoders of one codebook and width share; immutable.
struct TrellisTable {
  TrellisTable(exl3::Codebook codebook, int bits);

  int bits;
  exl3::Codebook codebook;
  /// Values of the edges in the order in which a forward step reads them:
  /// [node / 8][incoming edge][node % 8].
  std::vector<float> values;
};

/// One thread's encoder: scratch for the costs of every position (8 MB a tile at K = 3, twice).
class TileEncoder {
 public:
  TileEncoder(std::shared_ptr<const TrellisTable> table, cpu::Isa isa);

  /// tiles: 1 or 2 tiles of 256 targets in stream order, one after the other; two share their table
  /// reads. states: as many. Ties go to the smallest edge.
  void encode(std::span<const float> tiles, std::span<uint16_t> states);

 private:
  std::shared_ptr<const TrellisTable> table_;
  cpu::Isa isa_;
  std::vector<float> costs_;
};

}  // namespace onecard::quantize
