#include "ops/linear.h"

#include <string>

#include "base/error.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/kernels.h"
#include "quant/exl3/reconstruct.h"

namespace onecard::ops {
namespace {

int64_t element_offset_bytes(LinearWeight::Format format, int64_t elements) {
  switch (format) {
    case LinearWeight::Format::kF32:
      return 4 * elements;
    case LinearWeight::Format::kF16:
    case LinearWeight::Format::kBf16:
      return 2 * elements;
    case LinearWeight::Format::kFp8Block32:
      return elements;
    case LinearWeight::Format::kFp4Block32:
      return elements / 2;
    case LinearWeight::Format::kExl3:
      break;
  }
  return 0;
}

void cut_exl3(exl3::MatrixView& matrix, int64_t begin, int64_t end) {
  const int64_t first_tile = begin / exl3::kTileDim;
  matrix.data = matrix.tile(0, first_tile);
  matrix.out_features = end - begin;
  matrix.svh = matrix.svh.subspan(size_t(begin), size_t(end - begin));
}

void check_weight(const LinearWeight& w) {
  if (w.format == LinearWeight::Format::kExl3) {
    exl3::check_matrix(w.exl3);
    require(w.exl3.in_features == w.in_features && w.exl3.out_features == w.out_features,
            ErrorCode::kInvalidArgument,
            "linear: the EXL3 matrix has another shape than its weight");
  } else {
    const bool scaled = w.format == LinearWeight::Format::kFp8Block32 ||
                        w.format == LinearWeight::Format::kFp4Block32;
    require(w.data != nullptr && (!scaled || w.scales != nullptr), ErrorCode::kInvalidArgument,
            "linear: the weight has no data or no scales");
    require(w.format != LinearWeight::Format::kFp4Block32 || w.in_features % 2 == 0,
            ErrorCode::kInvalidArgument, "linear: FP4 weights need an even number of inputs");
  }
}

}  // namespace

LinearWeight LinearWeight::out_rows(int64_t begin, int64_t end) const {
  const int64_t step = format == Format::kFp8Block32 ? 32 : format == Format::kExl3 ? 128 : 1;
  const bool whole = begin == 0 && end == out_features;
  const bool native = format == Format::kExl3 && exl3.layout == exl3::Layout::kNative;
  if (begin < 0 || end > out_features || begin >= end || begin % step != 0 || end % step != 0 ||
      (native && !whole))
    throw Error(ErrorCode::kInvalidArgument,
                "linear: outputs " + std::to_string(begin) + ".." + std::to_string(end) + " of " +
                    std::to_string(out_features) + " cannot be cut out: multiples of " +
                    std::to_string(step) + (native ? ", and no cut of a native EXL3 matrix" : ""));
  LinearWeight part = *this;
  part.out_features = end - begin;
  if (format == Format::kExl3) {
    cut_exl3(part.exl3, begin, end);
    return part;
  }
  part.data =
      static_cast<const std::byte*>(data) + element_offset_bytes(format, begin * in_features);
  if (format == Format::kFp8Block32) part.scales = scales + begin / 32 * ((in_features + 31) / 32);
  if (format == Format::kFp4Block32) part.scales = scales + begin * ((in_features + 31) / 32);
  return part;
}

void linear(const Exec& exec, View<const float> x, const LinearWeight& w, View<float> out) {
  const LinearCall call{x, &w, out};
  linear_each(exec, {&call, 1});
}

void linear_each(const Exec& exec, std::span<const LinearCall> calls) {
  for (const LinearCall& call : calls) {
    const LinearWeight& w = *call.w;
    if (call.x.cols != w.in_features || call.out.cols != w.out_features ||
        call.out.rows != call.x.rows || call.x.rows != calls[0].x.rows)
      throw Error(ErrorCode::kInvalidArgument,
                  "linear: x is [" + std::to_string(call.x.rows) + ", " +
                      std::to_string(call.x.cols) + "], out [" + std::to_string(call.out.rows) +
                      ", " + std::to_string(call.out.cols) + "], the weight maps " +
                      std::to_string(w.in_features) + " to " + std::to_string(w.out_features));
    check_weight(w);
  }
  if (calls.empty() || calls[0].x.rows == 0) return;
  if (exec.backend == Backend::kCuda) return cuda::linear_each(exec, calls);
  for (const LinearCall& call : calls) cpu::linear(exec, call.x, *call.w, call.out);
}

void exl3_reconstruct_inner(const Exec& exec, const exl3::MatrixView& matrix, View<uint16_t> out) {
  exl3::check_matrix(matrix);
  require(exec.backend == Backend::kCuda, ErrorCode::kUnsupported,
          "exl3_reconstruct_inner: there is no CPU kernel for it");
  require(out.rows == matrix.out_features && out.cols == matrix.in_features && out.contiguous(),
          ErrorCode::kInvalidArgument,
          "exl3_reconstruct_inner: out must be [out_features, in_features]");
  cuda::exl3_reconstruct_inner(exec, matrix, out.data);
}

void widen(const LinearWeight& w, View<float> out) {
  check_weight(w);
  require(out.rows == w.out_features && out.cols == w.in_features, ErrorCode::kInvalidArgument,
          "widen: out must be [out_features, in_features]");
  cpu::widen(w, out);
}

}  // namespace onecard::ops
