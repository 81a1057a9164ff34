#include "quantize/source_matrix.h"

#include <cstring>

#include "base/error.h"
#include "model/stored_linear.h"
#include "ops/linear.h"

namespace onecard::quantize {
namespace {

// Checkpoints align nothing: a copy of our own does.
Buffer<std::byte> aligned_copy(const io::StoredTensor& tensor) {
  Buffer<std::byte> copy(int64_t(tensor.bytes.size()));
  io::Checkpoint::read(tensor, 0, copy.span());
  return copy;
}

}  // namespace

Buffer<float> read_matrix(const io::Checkpoint& source, const std::string& module,
                          int64_t source_rows, int64_t row_begin, int64_t out_features,
                          int64_t in_features) {
  const auto stored = model::find_linear(source, module, source_rows, in_features);
  if (!stored) throw Error(ErrorCode::kDataCorrupt, source.directory() + ": no matrix " + module);
  if (stored->format == model::WeightFormat::kExl3)
    throw Error(ErrorCode::kUnsupported,
                source.directory() + ": " + module + " is EXL3 already: quantise from its source");
  using Format = ops::LinearWeight::Format;
  ops::LinearWeight weight;
  weight.in_features = in_features;
  weight.out_features = source_rows;
  const Buffer<std::byte> data = aligned_copy(*stored->weight);
  Buffer<std::byte> scales;
  if (stored->scale != nullptr) scales = aligned_copy(*stored->scale);
  weight.data = data.data();
  weight.scales = reinterpret_cast<const uint8_t*>(scales.data());
  switch (stored->format) {
    case model::WeightFormat::kFp8:
      weight.format = Format::kFp8Block32;
      break;
    case model::WeightFormat::kFp4:
      weight.format = Format::kFp4Block32;
      break;
    default:
      weight.format = stored->weight->dtype == DType::kF32   ? Format::kF32
                      : stored->weight->dtype == DType::kF16 ? Format::kF16
                                                             : Format::kBf16;
  }
  Buffer<float> matrix(out_features * in_features);
  ops::widen(weight.out_rows(row_begin, row_begin + out_features),
             matrix.view(out_features, in_features));
  return matrix;
}

}  // namespace onecard::quantize
