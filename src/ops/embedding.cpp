#include "ops/embedding.h"

#include <cstring>
#include <string>

#include "base/error.h"
#include "ops/cuda/kernels.h"
#include "tensor/dtype.h"

namespace onecard::ops {

void embed(const Exec& exec, const LinearWeight& table, std::span<const int32_t> token_ids,
           View<float> out) {
  using Format = LinearWeight::Format;
  require(out.rows == int64_t(token_ids.size()) && out.cols == table.in_features,
          ErrorCode::kInvalidArgument, "embed: out must be [token ids, hidden]");
  require(
      table.format == Format::kF32 || table.format == Format::kF16 || table.format == Format::kBf16,
      ErrorCode::kUnsupported, "embed: the table must be F32, F16 or BF16");
  if (exec.backend == Backend::kCuda) return cuda::embed(exec, table, token_ids, out);
  for (int64_t t = 0; t < out.rows; ++t) {
    const int64_t id = token_ids[size_t(t)];
    if (id < 0 || id >= table.out_features)
      throw Error(ErrorCode::kInvalidArgument, "embed: token id " + std::to_string(id) +
                                                   " outside [0, " +
                                                   std::to_string(table.out_features) + ")");
    float* row = out.row(t);
    const auto* half = static_cast<const uint16_t*>(table.data) + id * out.cols;
    switch (table.format) {
      case Format::kF32:
        std::memcpy(row, static_cast<const float*>(table.data) + id * out.cols,
                    size_t(out.cols) * sizeof(float));
        break;
      case Format::kBf16:
        for (int64_t c = 0; c < out.cols; ++c) row[c] = bf16_to_f32(half[c]);
        break;
      case Format::kF16:
        for (int64_t c = 0; c < out.cols; ++c) row[c] = f16_to_f32(half[c]);
        break;
      default:
        break;
    }
  }
}

}  // namespace onecard::ops
