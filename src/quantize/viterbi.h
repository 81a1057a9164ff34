// The forward step of the trellis search. Raw pointers and numbers only: shared with a source
// compiled for AVX2, which may include no inline code of others.
#pragma once

#include <cstdint>

namespace onecard::quantize {

/// Where node n = q << (16 - 2K) | r lies in a row of costs: q * pitch + r. Rows of q lie apart by
/// a little more than a power of two, so that the 2^K costs that a step reads together do not share
/// a cache set.
struct CostLayout {
  int64_t pitch = 0;      // floats
  int64_t row_size = 0;   // floats, with room for a wide load behind the last
  int64_t tile_size = 0;  // 257 rows: before position 0, after each position
};

constexpr int kTrellisSteps = 256;

/// Fills rows 1..256 of each tile's costs from row 0:
///   cost[t+1][n] = min over edges s into n of cost[t][s >> K] + (value(s) - targets[t])^2.
/// `values` as TrellisTable, targets [num_tiles][256] in the order of the steps, num_tiles 1 or 2.
void viterbi_forward_plain(int bits, const float* values, const float* targets, int num_tiles,
                           const CostLayout& layout, float* costs);
void viterbi_forward_avx2(int bits, const float* values, const float* targets, int num_tiles,
                          const CostLayout& layout, float* costs);

}  // namespace onecard::quantize
