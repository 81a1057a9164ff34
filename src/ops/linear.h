// Linear layers over every stored weight format. The format is read from the tensors, per matrix.
#pragma once

#include <cstdint>
#include <span>

#include "device/exec.h"
#include "quant/exl3/matrix.h"
#include "tensor/view.h"

namespace onecard::ops {

/// One weight matrix W[out, in] as stored; borrows.
struct LinearWeight {
  enum class Format {
    kF32,         // [out, in]
    kF16,         // [out, in]
    kBf16,        // [out, in]
    kFp8Block32,  // e4m3 [out, in], one e8m0 scale per 32x32 tile [out/32, in/32]
    kFp4Block32,  // e2m1 pairs [out, in/2], low nibble first, one e8m0 scale per 32 inputs [out,
                  // in/32]
    kExl3,        // `exl3`
  };
  Format format = Format::kF32;
  int64_t in_features = 0;
  int64_t out_features = 0;
  const void* data = nullptr;       // all but kExl3; aligned to the element
  const uint8_t* scales = nullptr;  // kFp8Block32, kFp4Block32
  exl3::MatrixView exl3;            // kExl3

  /// Output rows [begin, end) as a matrix of their own; a block-diagonal product is one such call a
  /// block, on that block's columns of x. Throws kInvalidArgument where the format cannot be cut
  /// (kFp8Block32: multiples of 32; kExl3: multiples of 128, and not in the native layout, whose
  /// tile rows run over all outputs).
  LinearWeight out_rows(int64_t begin, int64_t end) const;
};

/// out[t,o] = sum_i W[o,i] x[t,i].   x: [tokens, in] f32; out: [tokens, out] f32, not x.
/// Plain path: weights exact, products summed in f64 (kExl3: y = (H (H(x suh) Wi)) svh, all in
/// f64). AVX2 and up: summed in f32; kExl3 by strip kernels, exact, or with exec.dense_int16 and
/// mul1 on x in 15 bits (exl3_kernels.h). Work is split by outputs over exec.pool: a row's result
/// depends neither on the number of threads nor on the other rows. CUDA: queued on exec.stream;
/// plain formats in f32, EXL3 with its rotated activations in fp16 and sums in f32; a row's result
/// does not depend on the other rows of an EXL3 product. Throws kInvalidArgument on a bad shape.
void linear(const Exec& exec, View<const float> x, const LinearWeight& w, View<float> out);

/// One product of linear_each().
struct LinearCall {
  View<const float> x;
  const LinearWeight* w = nullptr;
  View<float> out;
};

/// linear() for every call, in one launch where the device can. The calls have the same number of
/// rows, and none reads what another writes.
void linear_each(const Exec& exec, std::span<const LinearCall> calls);

/// The inner matrix of an EXL3 matrix on the device as fp16 bits, exact: out [out_features,
/// in_features], dense rows. CUDA alone; queued on exec.stream.
void exl3_reconstruct_inner(const Exec& exec, const exl3::MatrixView& matrix, View<uint16_t> out);

/// out = W in f32: exact, but for kExl3 rounded once. out: [out_features, in_features], in host
/// memory, as the weight is.
void widen(const LinearWeight& w, View<float> out);

}  // namespace onecard::ops
