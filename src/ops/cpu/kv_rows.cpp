#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_kernels.h"

namespace onecard::ops::cpu {

void pack_kv_rows(const Exec& exec, View<const float> x, const KvRows& out) {
  const RowKernels& kernels = row_kernels(exec.isa);
  for_each_row_range(exec, x.rows, 8 * x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) kernels.pack(out.format, x.row(t), out.dim, out.row(t));
  });
}

void unpack_kv_rows(const Exec& exec, const ConstKvRows& rows, View<float> out) {
  const RowKernels& kernels = row_kernels(exec.isa);
  for_each_row_range(exec, out.rows, out.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      kernels.unpack(rows.format, rows.row(t), rows.dim, out.row(t));
  });
}

void fake_quantise(const Exec& exec, KvFormat format, int64_t dim, View<float> x) {
  const RowKernels& kernels = row_kernels(exec.isa);
  for_each_row_range(exec, x.rows, 8 * x.cols, [&](int64_t begin, int64_t end) {
    std::byte packed[2 * kMaxFakeQuantDim];
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t c = 0; c < x.cols; c += dim) {
        kernels.pack(format, x.row(t) + c, dim, packed);
        kernels.unpack(format, packed, dim, x.row(t) + c);
      }
    }
  });
}

}  // namespace onecard::ops::cpu
