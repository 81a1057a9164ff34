#include "model/weight_loader.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "io/safetensors.h"
#include "quant/exl3/layout.h"
#include "tensor/dtype.h"

namespace onecard::model {
namespace {

using Format = ops::LinearWeight::Format;

int64_t num_elements(const io::StoredTensor& tensor) {
  int64_t count = 1;
  for (const int64_t dim : tensor.shape) count *= dim;
  return count;
}

[[noreturn]] void refuse(const io::StoredTensor& tensor, const std::string& expected) {
  throw Error(ErrorCode::kDataCorrupt,
              tensor.file->path() + ": " + std::string(tensor.name) + ": expected " + expected +
                  ", found " + dtype_name(tensor.dtype) + " " + io::shape_text(tensor.shape));
}

/// [rows, cols], with leading dimensions taken together.
void require_matrix(const io::StoredTensor& tensor, int64_t rows, int64_t cols) {
  if (tensor.shape.empty() || tensor.shape.back() != cols || num_elements(tensor) != rows * cols)
    refuse(tensor, "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]");
}

void to_f32(const io::StoredTensor& tensor, float* out) {
  const int64_t count = num_elements(tensor);
  const auto half = [&](float (*convert)(uint16_t)) {
    for (int64_t i = 0; i < count; ++i) {
      uint16_t bits;
      std::memcpy(&bits, tensor.bytes.data() + 2 * i, sizeof(bits));
      out[i] = convert(bits);
    }
  };
  switch (tensor.dtype) {
    case DType::kF32:
      std::memcpy(out, tensor.bytes.data(), size_t(count) * sizeof(float));
      return;
    case DType::kBf16:
      return half(bf16_to_f32);
    case DType::kF16:
      return half(f16_to_f32);
    default:
      refuse(tensor, "F32, BF16 or F16");
  }
}

}  // namespace

std::byte* WeightMemory::allocate(int64_t bytes) {
  owned_bytes += bytes;
  blocks.emplace_back(bytes);
  return blocks.back().data();
}

const std::byte* WeightLoader::bytes_of(const io::StoredTensor& tensor, bool keep_mapped) {
  if (keep_mapped && tensor.aligned_for<uint32_t>()) return tensor.bytes.data();
  std::byte* copy = memory_.allocate(int64_t(tensor.bytes.size()));
  io::Checkpoint::read(tensor, 0, {copy, tensor.bytes.size()});
  return copy;
}

View<const float> WeightLoader::matrix(const std::string& name, int64_t rows, int64_t cols) {
  const io::StoredTensor& tensor = checkpoint_.at(name);
  require_matrix(tensor, rows, cols);
  auto* values = reinterpret_cast<float*>(memory_.allocate(rows * cols * int64_t(sizeof(float))));
  to_f32(tensor, values);
  return {values, rows, cols};
}

std::span<const float> WeightLoader::vector(const std::string& name, int64_t size) {
  return matrix(name, 1, size).row_span(0);
}

bool WeightLoader::is_exl3(const std::string& name) const {
  return checkpoint_.find(name + ".trellis") != nullptr;
}

ops::LinearWeight WeightLoader::linear(const std::string& name, int64_t out_features,
                                       int64_t in_features) {
  return is_exl3(name) ? exl3_linear(name, out_features, in_features)
                       : stored_linear(name, out_features, in_features, false);
}

ops::LinearWeight WeightLoader::stored_linear(const std::string& name, int64_t out_features,
                                              int64_t in_features, bool keep_mapped) {
  const io::StoredTensor& tensor = checkpoint_.at(name + ".weight");
  ops::LinearWeight weight;
  weight.in_features = in_features;
  weight.out_features = out_features;
  int64_t scale_rows = 0;
  switch (tensor.dtype) {
    case DType::kF32:
      weight.format = Format::kF32;
      break;
    case DType::kF16:
      weight.format = Format::kF16;
      break;
    case DType::kBf16:
      weight.format = Format::kBf16;
      break;
    case DType::kF8E4m3:
      weight.format = Format::kFp8Block32;
      scale_rows = (out_features + 31) / 32;
      break;
    case DType::kI8:
    case DType::kU8:
      weight.format = Format::kFp4Block32;
      scale_rows = out_features;
      break;
    default:
      refuse(tensor, "F32, BF16, F16, F8_E4M3 or packed FP4 (I8)");
  }
  require_matrix(tensor, out_features,
                 weight.format == Format::kFp4Block32 ? in_features / 2 : in_features);
  weight.data = bytes_of(tensor, keep_mapped);
  if (scale_rows > 0) {
    const io::StoredTensor& scale = checkpoint_.at(name + ".scale");
    if (scale.dtype != DType::kF8E8m0) refuse(scale, "F8_E8M0");
    require_matrix(scale, scale_rows, (in_features + 31) / 32);
    weight.scales = reinterpret_cast<const uint8_t*>(bytes_of(scale, keep_mapped));
  }
  return weight;
}

std::span<const uint16_t> WeightLoader::exl3_scales(const std::string& name, const char* scales,
                                                    const char* signs, int64_t size) {
  auto* out = reinterpret_cast<uint16_t*>(memory_.allocate(size * int64_t(sizeof(uint16_t))));
  if (const io::StoredTensor* tensor = checkpoint_.find(name + scales)) {
    if (tensor->dtype != DType::kF16) refuse(*tensor, "F16");
    require_matrix(*tensor, 1, size);
    std::memcpy(out, tensor->bytes.data(), tensor->bytes.size());
  } else {
    const io::StoredTensor& words = checkpoint_.at(name + signs);
    if (words.dtype != DType::kI16 && words.dtype != DType::kU16) refuse(words, "I16");
    require_matrix(words, 1, size / 16);
    std::vector<uint16_t> copy(size_t(size / 16));
    std::memcpy(copy.data(), words.bytes.data(), words.bytes.size());
    exl3::unpack_signs(copy, {out, size_t(size)});
  }
  return {out, size_t(size)};
}

exl3::MatrixView WeightLoader::exl3_native(const std::string& name, int64_t out_features,
                                           int64_t in_features) {
  const io::StoredTensor& trellis = checkpoint_.at(name + ".trellis");
  const int64_t words = trellis.shape.empty() ? 0 : trellis.shape.back();
  if ((trellis.dtype != DType::kI16 && trellis.dtype != DType::kU16) || trellis.shape.size() != 3 ||
      trellis.shape[0] * 16 != in_features || trellis.shape[1] * 16 != out_features ||
      words % 16 != 0 || words < 16 || words > 128 || in_features % exl3::kGroupDim != 0 ||
      out_features % exl3::kGroupDim != 0)
    refuse(trellis, "I16 [" + std::to_string(in_features / 16) + ", " +
                        std::to_string(out_features / 16) +
                        ", 16 K] with K of 1..8, from dimensions that are multiples of 128");
  if (const io::StoredTensor* bias = checkpoint_.find(name + ".bias"))
    refuse(*bias, "no bias: the model has none");
  exl3::MatrixView matrix;
  matrix.in_features = in_features;
  matrix.out_features = out_features;
  matrix.bits = int(words / 16);
  const io::StoredTensor* mul1 = checkpoint_.find(name + ".mul1");
  const io::StoredTensor* mcg = checkpoint_.find(name + ".mcg");
  if (mul1 != nullptr && mcg != nullptr) refuse(*mcg, "one codebook, not mul1 and mcg together");
  matrix.codebook = mul1 != nullptr  ? exl3::Codebook::kMul1
                    : mcg != nullptr ? exl3::Codebook::kMcg
                                     : exl3::Codebook::k3Inst;
  matrix.data = trellis.bytes.data();
  matrix.suh = exl3_scales(name, ".suh", ".su", in_features);
  matrix.svh = exl3_scales(name, ".svh", ".sv", out_features);
  return matrix;
}

ops::LinearWeight WeightLoader::exl3_linear(const std::string& name, int64_t out_features,
                                            int64_t in_features) {
  const exl3::MatrixView native = exl3_native(name, out_features, in_features);
  const int64_t band_bytes =
      exl3::group_bytes(in_features, out_features, native.bits, exl3::Layout::kBand);
  std::byte* tiles = memory_.allocate(out_features / exl3::kGroupDim * band_bytes);
  ops::LinearWeight weight;
  weight.format = Format::kExl3;
  weight.in_features = in_features;
  weight.out_features = out_features;
  weight.exl3 = exl3::reorder(native, exl3::Layout::kBand, tiles, band_bytes);
  io::Checkpoint::drop_pages(checkpoint_.at(name + ".trellis"));
  return weight;
}

std::vector<ops::LinearWeight> WeightLoader::grouped_linear(const std::string& name,
                                                            int64_t num_groups,
                                                            int64_t out_features,
                                                            int64_t in_features) {
  std::vector<ops::LinearWeight> groups;
  if (is_exl3(name + ".slice.0")) {
    for (int64_t g = 0; g < num_groups; ++g)
      groups.push_back(linear(name + ".slice." + std::to_string(g), out_features, in_features));
    return groups;
  }
  const ops::LinearWeight whole = linear(name, num_groups * out_features, in_features);
  for (int64_t g = 0; g < num_groups; ++g)
    groups.push_back(whole.out_rows(g * out_features, (g + 1) * out_features));
  return groups;
}

experts::ExpertMatrices WeightLoader::expert(const std::string& name, int64_t hidden,
                                             int64_t intermediate) {
  const std::string w1 = name + ".w1", w2 = name + ".w2", w3 = name + ".w3";
  if (!is_exl3(w1) || !is_exl3(w2) || !is_exl3(w3)) {
    const auto one = [&](const std::string& module, int64_t out, int64_t in) {
      return is_exl3(module) ? exl3_linear(module, out, in) : stored_linear(module, out, in, true);
    };
    return {one(w1, intermediate, hidden), one(w3, intermediate, hidden),
            one(w2, hidden, intermediate)};
  }
  const exl3::ExpertView native{exl3_native(w1, intermediate, hidden),
                                exl3_native(w3, intermediate, hidden),
                                exl3_native(w2, hidden, intermediate)};
  if (native.gate.codebook != native.up.codebook || native.gate.codebook != native.down.codebook)
    return {exl3_linear(w1, intermediate, hidden), exl3_linear(w3, intermediate, hidden),
            exl3_linear(w2, hidden, intermediate)};
  const exl3::ExpertLayout layout(hidden, intermediate, native.gate.bits, native.up.bits,
                                  native.down.bits);
  std::byte* record = memory_.allocate(layout.record_bytes());
  layout.write(native, {record, size_t(layout.record_bytes())});
  const exl3::ExpertView view = layout.view(record, native.gate.codebook);
  const auto weight = [](const exl3::MatrixView& matrix) {
    ops::LinearWeight result;
    result.format = Format::kExl3;
    result.in_features = matrix.in_features;
    result.out_features = matrix.out_features;
    result.exl3 = matrix;
    return result;
  };
  for (const std::string& module : {w1, w2, w3})
    io::Checkpoint::drop_pages(checkpoint_.at(module + ".trellis"));
  return {weight(view.gate), weight(view.up), weight(view.down)};
}

}  // namespace onecard::model
