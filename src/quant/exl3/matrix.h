// An EXL3 matrix as it lies in memory: 16x16 tiles of packed trellis words, and the two
// sign-and-scale vectors.
//
// W[in, out] = diag(suh) H Wi H diag(svh), y = x W; Wi is cut into tiles of 16 (in) x 16 (out); a
// tile is 32*K bytes and is never taken apart. Only the order of whole tiles differs between
// layouts:
//   kNative  [in/16][out/16]                        as in the checkpoint
//   kBand    [out/128][in/128][8 out-tiles][8 in-tiles]   a band of 128 outputs is one group
//   kKBlock  [in/128][out/16][8 in-tiles]           a block of 128 inputs is one group (down
//   projections)
// Groups lie `group_stride_bytes` apart, so that gate, up and down of one expert can share units
// (unit u = gate band u | up band u | down k-block u).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace onecard::exl3 {

constexpr int64_t kTileDim = 16;    // weights per side of a tile
constexpr int64_t kGroupDim = 128;  // the Hadamard block; both dimensions are multiples of it

enum class Codebook : uint8_t { k3Inst, kMcg, kMul1 };
enum class Layout : uint8_t { kNative, kBand, kKBlock };

constexpr int64_t tile_bytes(int bits) { return 32 * int64_t(bits); }

/// Borrows everything. The bytes of tiles are little-endian 32-bit words; `data` is at least 4-byte
/// aligned and 64 bytes after its last tile are readable.
struct MatrixView {
  int64_t in_features = 0;
  int64_t out_features = 0;
  int bits = 0;  // K, 1..8
  Codebook codebook = Codebook::kMul1;
  Layout layout = Layout::kNative;
  const std::byte* data = nullptr;
  int64_t group_stride_bytes = 0;  // kBand, kKBlock: from one group to the next
  std::span<const uint16_t> suh;   // fp16 bits, [in_features]
  std::span<const uint16_t> svh;   // fp16 bits, [out_features]

  /// The tile of rows 16*in_tile.. and columns 16*out_tile.. .
  const std::byte* tile(int64_t in_tile, int64_t out_tile) const {
    switch (layout) {
      case Layout::kNative:
        return data + (in_tile * (out_features / kTileDim) + out_tile) * tile_bytes(bits);
      case Layout::kBand:
        return data + out_tile / 8 * group_stride_bytes +
               ((in_tile / 8 * 8 + out_tile % 8) * 8 + in_tile % 8) * tile_bytes(bits);
      case Layout::kKBlock:
        return data + in_tile / 8 * group_stride_bytes +
               (out_tile * 8 + in_tile % 8) * tile_bytes(bits);
    }
    return nullptr;
  }
};

/// The three matrices of one expert: gate and up [hidden, intermediate], down [intermediate,
/// hidden].
struct ExpertView {
  MatrixView gate;
  MatrixView up;
  MatrixView down;
};

}  // namespace onecard::exl3
