#include "ops/kv_rows.h"

#include "base/error.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/kernels.h"

namespace onecard::ops {

int64_t kv_block(KvFormat format) {
  switch (format) {
    case KvFormat::kFp8Block32:
    case KvFormat::kFp4Block32:
      return 32;
    case KvFormat::kFp4Block16:
      return 16;
    case KvFormat::kF32:
      break;
  }
  return 1;
}

KvFormat kv_format_for(KvFormat format, int64_t dim) {
  return dim % kv_block(format) == 0 ? format : KvFormat::kF32;
}

int64_t kv_row_bytes(KvFormat format, int64_t dim) {
  switch (format) {
    case KvFormat::kFp8Block32:
      return dim + dim / 32;
    case KvFormat::kFp4Block32:
      return dim / 2 + dim / 32;
    case KvFormat::kFp4Block16:
      return dim / 2 + dim / 16;
    case KvFormat::kF32:
      break;
  }
  return dim * int64_t(sizeof(float));
}

void pack_kv_rows(const Exec& exec, View<const float> x, const KvRows& out) {
  require(x.cols == out.dim && out.dim % kv_block(out.format) == 0, ErrorCode::kInvalidArgument,
          "pack_kv_rows: rows must have as many columns as the format packs, a multiple of its "
          "block");
  if (exec.backend == Backend::kCuda) return cuda::pack_kv_rows(exec, x, out);
  cpu::pack_kv_rows(exec, x, out);
}

void unpack_kv_rows(const Exec& exec, const ConstKvRows& rows, View<float> out) {
  require(out.cols == rows.dim, ErrorCode::kInvalidArgument,
          "unpack_kv_rows: out must have the rows' columns");
  if (exec.backend == Backend::kCuda) return cuda::unpack_kv_rows(exec, rows, out);
  cpu::unpack_kv_rows(exec, rows, out);
}

void fake_quantise(const Exec& exec, KvFormat format, int64_t dim, View<float> x) {
  require(dim > 0 && dim <= kMaxFakeQuantDim && x.cols % dim == 0 && dim % kv_block(format) == 0,
          ErrorCode::kInvalidArgument,
          "fake_quantise: columns must be whole vectors, and these whole blocks");
  if (format == KvFormat::kF32) return;
  if (exec.backend == Backend::kCuda) return cuda::fake_quantise(exec, format, dim, x);
  cpu::fake_quantise(exec, format, dim, x);
}

}  // namespace onecard::ops
