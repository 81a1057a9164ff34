#include "quantize/tile_encoder.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "quant/exl3/codebook.h"
#include "quantize/viterbi.h"

namespace onecard::quantize {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

CostLayout cost_layout(int bits) {
  const int64_t rest = int64_t(1) << std::max(0, 16 - 2 * bits);
  CostLayout layout;
  layout.pitch = rest >= 8 ? rest + 16 : rest;  // 8 neighbouring nodes stay neighbours
  layout.row_size = (layout.pitch << bits) + 16;
  layout.tile_size = (kTrellisSteps + 1) * layout.row_size;
  return layout;
}

// A search over finished costs: the path is found backwards by asking which edge gave each minimum.
class Traceback {
 public:
  Traceback(const TrellisTable& table, const CostLayout& layout, const float* costs)
      : bits_(table.bits), values_(table.values.data()), layout_(layout), costs_(costs) {}

  float cost_after(int step, int node) const {
    return costs_[(step + 1) * layout_.row_size + position(node)];
  }

  /// The edge by which the best path to `node` came at `step`.
  uint16_t edge_into(int node, int step, float target) const {
    const int edges = 1 << bits_;
    const float* const values = values_ + int64_t(node / 8) * 8 * edges + node % 8;
    const float* const previous = costs_ + step * layout_.row_size;
    int best_q = 0;
    float best = kInfinity;
    for (int q = 0; q < edges; ++q) {
      const float error = values[8 * q] - target;
      const float cost = error * error + previous[position(source(q, node))];
      if (cost < best) {
        best = cost;
        best_q = q;
      }
    }
    return uint16_t(best_q << (16 - bits_) | node);
  }

 private:
  int source(int q, int node) const { return (q << (16 - bits_) | node) >> bits_; }
  int64_t position(int node) const {
    const int rest_bits = 16 - 2 * bits_;
    return (node >> rest_bits) * layout_.pitch + (node & ((1 << rest_bits) - 1));
  }

  int bits_;
  const float* values_;
  const CostLayout& layout_;
  const float* costs_;
};

}  // namespace

void viterbi_forward_plain(int bits, const float* values, const float* targets, int num_tiles,
                           const CostLayout& layout, float* costs) {
  const int edges = 1 << bits;
  const int nodes = exl3::kNumStates >> bits;
  const int64_t rest = int64_t(1) << (16 - 2 * bits);
  for (int tile = 0; tile < num_tiles; ++tile)
    for (int t = 0; t < kTrellisSteps; ++t) {
      const float* const from = costs + tile * layout.tile_size + t * layout.row_size;
      float* const to = costs + tile * layout.tile_size + (t + 1) * layout.row_size;
      const float x = targets[tile * kTrellisSteps + t];
      for (int64_t node = 0; node < nodes; node += 8) {
        std::array<float, 8> best;
        best.fill(kInfinity);
        for (int q = 0; q < edges; ++q)
          for (int i = 0; i < 8; ++i) {
            const float error = values[(node / 8 * edges + q) * 8 + i] - x;
            const float cost = error * error + from[q * layout.pitch + ((node + i) >> bits)];
            best[size_t(i)] = std::min(best[size_t(i)], cost);
          }
        for (int64_t i = 0; i < 8; ++i)
          to[(node + i) / rest * layout.pitch + (node + i) % rest] = best[size_t(i)];
      }
    }
}

TrellisTable::TrellisTable(exl3::Codebook codebook_in, int bits_in)
    : bits(bits_in), codebook(codebook_in), values(exl3::kNumStates) {
  require(bits >= 1 && bits <= 8, ErrorCode::kInvalidArgument, "trellis: bits must be 1..8");
  const float* const table = exl3::codebook_table(codebook);
  const int edges = 1 << bits;
  const int nodes = exl3::kNumStates >> bits;
  for (int node = 0; node < nodes; ++node)
    for (int q = 0; q < edges; ++q)
      values[size_t((node / 8 * edges + q) * 8 + node % 8)] = table[q << (16 - bits) | node];
}

TileEncoder::TileEncoder(std::shared_ptr<const TrellisTable> table, cpu::Isa isa)
    : table_(std::move(table)),
      isa_(isa),
      costs_(size_t(2 * cost_layout(table_->bits).tile_size), kInfinity) {}

void TileEncoder::encode(std::span<const float> tiles, std::span<uint16_t> states) {
  const int num_tiles = int(tiles.size()) / kTrellisSteps;
  require((num_tiles == 1 || num_tiles == 2) && tiles.size() == size_t(num_tiles) * kTrellisSteps &&
              states.size() == tiles.size(),
          ErrorCode::kInvalidArgument, "tile encoder: 1 or 2 tiles of 256 values");
  const CostLayout layout = cost_layout(table_->bits);
  const auto forward = isa_ >= cpu::Isa::kAvx2 ? viterbi_forward_avx2 : viterbi_forward_plain;
  const int nodes = exl3::kNumStates >> table_->bits;
  const int bits = table_->bits;

  std::array<float, 2 * kTrellisSteps> ahead{};  // pass 1: positions 128..255, 0..127
  for (int tile = 0; tile < num_tiles; ++tile) {
    const float* const x = tiles.data() + tile * kTrellisSteps;
    std::rotate_copy(x, x + 128, x + kTrellisSteps, ahead.data() + tile * kTrellisSteps);
    std::fill_n(costs_.data() + tile * layout.tile_size, layout.row_size, 0.0f);
  }
  forward(bits, table_->values.data(), ahead.data(), num_tiles, layout, costs_.data());
  std::array<int, 2> seam{};
  for (int tile = 0; tile < num_tiles; ++tile) {
    const Traceback back(*table_, layout, costs_.data() + tile * layout.tile_size);
    int node = 0;
    for (int n = 1; n < nodes; ++n)
      if (back.cost_after(255, n) < back.cost_after(255, node)) node = n;
    for (int step = 255; step >= 128; --step)
      node = back.edge_into(node, step, ahead[size_t(tile * kTrellisSteps + step)]) >> bits;
    seam[size_t(tile)] = node;
  }

  for (int tile = 0; tile < num_tiles; ++tile) {
    float* const first = costs_.data() + tile * layout.tile_size;
    std::fill_n(first, layout.row_size, kInfinity);
    const int rest_bits = 16 - 2 * bits;
    first[(seam[size_t(tile)] >> rest_bits) * layout.pitch +
          (seam[size_t(tile)] & ((1 << rest_bits) - 1))] = 0.0f;
  }
  forward(bits, table_->values.data(), tiles.data(), num_tiles, layout, costs_.data());
  for (int tile = 0; tile < num_tiles; ++tile) {
    const Traceback back(*table_, layout, costs_.data() + tile * layout.tile_size);
    int node = seam[size_t(tile)];
    for (int step = 255; step >= 0; --step) {
      const size_t at = size_t(tile * kTrellisSteps + step);
      states[at] = back.edge_into(node, step, tiles[at]);
      node = states[at] >> bits;
    }
    ONECARD_ASSERT(node == seam[size_t(tile)]);
  }
}

}  // namespace onecard::quantize
