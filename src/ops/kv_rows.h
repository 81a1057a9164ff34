// Rows of the KV cache and of the index keys: vectors in the model's own 8 and 4 bit grids. The
// grids are part of the forward function, so packing is exact: what is unpacked is the
// fake-quantised value, bit for bit.
//
//   format        values            scales                          bytes of a row
//   kF32          f32               -                               4 dim
//   kFp8Block32   e4m3              e8m0, one per 32                dim + dim/32
//   kFp4Block32   e2m1, low first   e8m0, one per 32                dim/2 + dim/32
//   kFp4Block16   e2m1, low first   e4m3, one per 16                dim/2 + dim/16
//
// Values come first, then the scales. Scale s and code y of a block with amax = max |x|:
//   kFp8Block32   s = pow2ceil(max(amax, 1e-4) * fp32(1/448))       y = e4m3(clamp(x/s, +-448))
//   kFp4Block32   s = pow2ceil(max(amax, 6*2^-126) * fp32(1/6))     y = e2m1(clamp(x/s, +-6))
//   kFp4Block16   s = e4m3(max(amax, 6*2^-9) / 6)                   y = e2m1(clamp(x/s, +-6))
// pow2ceil(x): the smallest power of two >= x; both roundings to nearest even.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/exec.h"
#include "ops/kv_format.h"
#include "tensor/view.h"

namespace onecard::ops {

/// Values that share a scale; 1 for kF32.
int64_t kv_block(KvFormat format);

/// `format`, or kF32 where its blocks do not divide the row: the quantiser is then left out.
KvFormat kv_format_for(KvFormat format, int64_t dim);

int64_t kv_row_bytes(KvFormat format, int64_t dim);

/// Packed rows, `stride_bytes` apart; borrows.
template <typename Byte>
struct BasicKvRows {
  Byte* data = nullptr;
  int64_t stride_bytes = 0;
  int64_t dim = 0;
  KvFormat format = KvFormat::kF32;

  constexpr Byte* row(int64_t row_idx) const { return data + row_idx * stride_bytes; }
};
using KvRows = BasicKvRows<std::byte>;
using ConstKvRows = BasicKvRows<const std::byte>;

inline ConstKvRows as_const(const KvRows& rows) {
  return {rows.data, rows.stride_bytes, rows.dim, rows.format};
}

/// Rows 0.. of `out` = x quantised.   x: [rows, out.dim] f32. Throws kInvalidArgument on a bad
/// shape.
void pack_kv_rows(const Exec& exec, View<const float> x, const KvRows& out);

/// out = rows 0.. of `rows` dequantised.   out: [n, rows.dim] f32.
void unpack_kv_rows(const Exec& exec, const ConstKvRows& rows, View<float> out);

/// The longest vector that fake_quantise() takes.
constexpr int64_t kMaxFakeQuantDim = 1024;

/// x quantised and dequantised in place, each run of `dim` columns as a row of its own (the heads
/// of an index query). kF32 leaves x as it is.
void fake_quantise(const Exec& exec, KvFormat format, int64_t dim, View<float> x);

}  // namespace onecard::ops
