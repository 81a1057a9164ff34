#include "quant/exl3/layout.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "quant/exl3/reconstruct.h"

namespace onecard::exl3 {

int64_t group_bytes(int64_t in_features, int64_t out_features, int bits, Layout layout) {
  const int64_t all = in_features / kTileDim * (out_features / kTileDim) * tile_bytes(bits);
  switch (layout) {
    case Layout::kNative:
      return all;
    case Layout::kBand:
      return all / (out_features / kGroupDim);
    case Layout::kKBlock:
      return all / (in_features / kGroupDim);
  }
  return 0;
}

MatrixView reorder(const MatrixView& source, Layout layout, std::byte* out,
                   int64_t group_stride_bytes) {
  check_matrix(source);
  MatrixView copy = source;
  copy.layout = layout;
  copy.data = out;
  copy.group_stride_bytes = group_stride_bytes;
  for (int64_t a = 0; a < source.in_features / kTileDim; ++a)
    for (int64_t b = 0; b < source.out_features / kTileDim; ++b)
      std::memcpy(out + (copy.tile(a, b) - copy.data), source.tile(a, b),
                  size_t(tile_bytes(source.bits)));
  return copy;
}

ExpertLayout::ExpertLayout(int64_t hidden, int64_t intermediate, int gate_bits, int up_bits,
                           int down_bits)
    : hidden_(hidden),
      intermediate_(intermediate),
      gate_bits_(gate_bits),
      up_bits_(up_bits),
      down_bits_(down_bits) {
  require(
      hidden > 0 && hidden % kGroupDim == 0 && intermediate > 0 && intermediate % kGroupDim == 0,
      ErrorCode::kInvalidArgument,
      "expert layout: hidden and intermediate must be multiples of 128");
  gate_bytes_ = group_bytes(hidden, intermediate, gate_bits, Layout::kBand);
  up_bytes_ = group_bytes(hidden, intermediate, up_bits, Layout::kBand);
  down_bytes_ = group_bytes(intermediate, hidden, down_bits, Layout::kKBlock);
}

int64_t ExpertLayout::record_bytes() const {
  return (scales_offset() + scales_bytes() + 64 + 511) / 512 * 512;
}

void ExpertLayout::write(const ExpertView& expert, std::span<std::byte> record) const {
  const bool shapes_fit =
      expert.gate.in_features == hidden_ && expert.gate.out_features == intermediate_ &&
      expert.up.in_features == hidden_ && expert.up.out_features == intermediate_ &&
      expert.down.in_features == intermediate_ && expert.down.out_features == hidden_;
  const bool bits_fit = expert.gate.bits == gate_bits_ && expert.up.bits == up_bits_ &&
                        expert.down.bits == down_bits_;
  require(shapes_fit && bits_fit && int64_t(record.size()) == record_bytes(),
          ErrorCode::kInvalidArgument, "expert layout: the expert does not fit this record");
  std::byte* const unit = record.data();
  reorder(expert.gate, Layout::kBand, unit, unit_bytes());
  reorder(expert.up, Layout::kBand, unit + gate_bytes_, unit_bytes());
  reorder(expert.down, Layout::kKBlock, unit + gate_bytes_ + up_bytes_, unit_bytes());
  std::byte* out = record.data() + scales_offset();
  for (const std::span<const uint16_t> scales : {expert.gate.suh, expert.gate.svh, expert.up.suh,
                                                 expert.up.svh, expert.down.suh, expert.down.svh}) {
    std::memcpy(out, scales.data(), scales.size_bytes());
    out += scales.size_bytes();
  }
  std::fill(out, record.data() + record.size(), std::byte{0});
}

ExpertView ExpertLayout::view(const std::byte* record, Codebook codebook) const {
  const auto* scales = reinterpret_cast<const uint16_t*>(record + scales_offset());
  const auto take = [&scales](int64_t count) {
    const std::span<const uint16_t> taken(scales, size_t(count));
    scales += count;
    return taken;
  };
  const auto matrix = [&](int64_t in, int64_t out, int bits, Layout layout, int64_t offset) {
    MatrixView view;
    view.in_features = in;
    view.out_features = out;
    view.bits = bits;
    view.codebook = codebook;
    view.layout = layout;
    view.data = record + offset;
    view.group_stride_bytes = unit_bytes();
    view.suh = take(in);
    view.svh = take(out);
    return view;
  };
  ExpertView expert;
  expert.gate = matrix(hidden_, intermediate_, gate_bits_, Layout::kBand, 0);
  expert.up = matrix(hidden_, intermediate_, up_bits_, Layout::kBand, gate_bytes_);
  expert.down =
      matrix(intermediate_, hidden_, down_bits_, Layout::kKBlock, gate_bytes_ + up_bytes_);
  return expert;
}

void unpack_signs(std::span<const uint16_t> words, std::span<uint16_t> scales) {
  require(scales.size() == 16 * words.size(), ErrorCode::kInvalidArgument,
          "exl3 signs: 16 scales a word");
  constexpr uint16_t kOne = 0x3C00;
  for (size_t i = 0; i < scales.size(); ++i)
    scales[i] = uint16_t(kOne | (words[i / 16] >> (i % 16) & 1) << 15);
}

}  // namespace onecard::exl3
