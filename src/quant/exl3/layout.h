// Moving tiles between layouts, and the record that holds one expert.
//
// Expert record ("unit layout"): intermediate/128 units, each
//   gate band u | up band u | down k-block u
// so that a unit computes 128 intermediate values and their share of the output with no other
// bytes; then the scales, fp16: gate suh, gate svh, up suh, up svh, down suh, down svh; then
// padding to a multiple of 512 with at least 64 bytes in it, so that wide loads may run over the
// last tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/exl3/matrix.h"

namespace onecard::exl3 {

/// Bytes of one group of `layout` (a band, a k-block), tiles side by side.
int64_t group_bytes(int64_t in_features, int64_t out_features, int bits, Layout layout);

/// Copies the tiles of `source` to `out` in `layout`, groups `group_stride_bytes` apart (ignored
/// for kNative); returns the view of the copy, which shares source's scales. The memory must not
/// overlap.
MatrixView reorder(const MatrixView& source, Layout layout, std::byte* out,
                   int64_t group_stride_bytes);

/// Sizes and offsets of an expert record; the three matrices may differ in bits.
class ExpertLayout {
 public:
  /// hidden and intermediate: positive multiples of 128; throws kInvalidArgument otherwise.
  ExpertLayout(int64_t hidden, int64_t intermediate, int gate_bits, int up_bits, int down_bits);

  int64_t num_units() const { return intermediate_ / kGroupDim; }
  int64_t unit_bytes() const { return gate_bytes_ + up_bytes_ + down_bytes_; }
  int64_t scales_offset() const { return num_units() * unit_bytes(); }
  int64_t scales_bytes() const { return 2 * 3 * (hidden_ + intermediate_); }
  int64_t record_bytes() const;  // padding included

  /// Writes the record from matrices in any layout. record.size() must be record_bytes().
  void write(const ExpertView& expert, std::span<std::byte> record) const;

  /// The expert in a record; `codebook` is that of all three matrices. `record` is at least 4-byte
  /// aligned and outlives the view.
  ExpertView view(const std::byte* record, Codebook codebook) const;

 private:
  int64_t hidden_;
  int64_t intermediate_;
  int gate_bits_;
  int up_bits_;
  int down_bits_;
  int64_t gate_bytes_;
  int64_t up_bytes_;
  int64_t down_bytes_;
};

/// Legacy files keep signs alone: bit i of words[w] is set when element 16*w + i is -1. `scales`
/// gets
/// +-1 as fp16 bits; 16 per word.
void unpack_signs(std::span<const uint16_t> words, std::span<uint16_t> scales);

}  // namespace onecard::exl3
