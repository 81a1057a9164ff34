#include <immintrin.h>

#include "quantize/viterbi.h"

namespace onecard::quantize {
namespace {

// The costs of the 8 nodes' predecessors along edge q. For K >= 3 eight neighbouring nodes share
// theirs.
template <int kBits>
inline __m256 predecessor_costs(const float* at) {
  if constexpr (kBits >= 3) return _mm256_broadcast_ss(at);
  const __m256i index = kBits == 1 ? _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)
                                   : _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  return _mm256_permutevar8x32_ps(_mm256_loadu_ps(at), index);
}

template <int kBits, int kTiles>
void step(const float* values, const float* targets, const CostLayout& layout, const float* from,
          float* to) {
  constexpr int kEdges = 1 << kBits;
  constexpr int kNodes = 65536 >> kBits;
  constexpr int kBlocks = kBits >= 4 ? 2 : 1;  // of 8 nodes with the same predecessors
  constexpr int64_t kRest = int64_t(1) << (16 - 2 * kBits);  // nodes of one q
  __m256 x[kTiles];
  for (int i = 0; i < kTiles; ++i) x[i] = _mm256_set1_ps(targets[i * kTrellisSteps]);
  for (int64_t node = 0; node < kNodes; node += 8 * kBlocks) {
    const float* const previous = from + (node >> kBits);
    const float* const edge_values = values + node * kEdges;
    __m256 best[kTiles][kBlocks];
    for (int i = 0; i < kTiles; ++i)
      for (int b = 0; b < kBlocks; ++b) best[i][b] = _mm256_set1_ps(__builtin_inff());
    for (int q = 0; q < kEdges; ++q) {
      __m256 value[kBlocks];
      for (int b = 0; b < kBlocks; ++b)
        value[b] = _mm256_loadu_ps(edge_values + 8 * (b * kEdges + q));
      for (int i = 0; i < kTiles; ++i) {
        const __m256 cost =
            predecessor_costs<kBits>(previous + i * layout.tile_size + q * layout.pitch);
        for (int b = 0; b < kBlocks; ++b) {
          const __m256 error = _mm256_sub_ps(value[b], x[i]);
          best[i][b] = _mm256_min_ps(best[i][b], _mm256_fmadd_ps(error, error, cost));
        }
      }
    }
    for (int i = 0; i < kTiles; ++i)
      for (int b = 0; b < kBlocks; ++b) {
        const int64_t n = node + 8 * b;
        _mm256_storeu_ps(to + i * layout.tile_size + n / kRest * layout.pitch + n % kRest,
                         best[i][b]);
      }
  }
}

template <int kBits>
void forward(const float* values, const float* targets, int num_tiles, const CostLayout& layout,
             float* costs) {
  for (int t = 0; t < kTrellisSteps; ++t) {
    const float* const from = costs + t * layout.row_size;
    float* const to = costs + (t + 1) * layout.row_size;
    if (num_tiles == 2)
      step<kBits, 2>(values, targets + t, layout, from, to);
    else
      step<kBits, 1>(values, targets + t, layout, from, to);
  }
}

}  // namespace

void viterbi_forward_avx2(int bits, const float* values, const float* targets, int num_tiles,
                          const CostLayout& layout, float* costs) {
  switch (bits) {
    case 1:
      return forward<1>(values, targets, num_tiles, layout, costs);
    case 2:
      return forward<2>(values, targets, num_tiles, layout, costs);
    case 3:
      return forward<3>(values, targets, num_tiles, layout, costs);
    case 4:
      return forward<4>(values, targets, num_tiles, layout, costs);
    case 5:
      return forward<5>(values, targets, num_tiles, layout, costs);
    case 6:
      return forward<6>(values, targets, num_tiles, layout, costs);
    case 7:
      return forward<7>(values, targets, num_tiles, layout, costs);
    default:
      return forward<8>(values, targets, num_tiles, layout, costs);
  }
}

}  // namespace onecard::quantize
