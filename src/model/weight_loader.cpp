#include "model/weight_loader.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "device/memory.h"
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
      throw Error(ErrorCode::kDataCorrupt, io::mismatch(tensor, "F32, BF16 or F16"));
  }
}

std::vector<uint16_t> exl3_scales(const io::StoredTensor& tensor, bool signs_only, int64_t size) {
  std::vector<uint16_t> scales(static_cast<size_t>(size));
  if (!signs_only) {
    io::Checkpoint::read(tensor, 0, std::as_writable_bytes(std::span(scales)));
    return scales;
  }
  std::vector<uint16_t> words(size_t(size) / 16);
  io::Checkpoint::read(tensor, 0, std::as_writable_bytes(std::span(words)));
  exl3::unpack_signs(words, scales);
  return scales;
}

/// An EXL3 matrix as it is stored: the tiles in the mapping, the scales unpacked.
struct NativeMatrix {
  explicit NativeMatrix(const StoredLinear& stored)
      : suh(exl3_scales(*stored.in_scale, stored.in_signs_only, stored.in_features)),
        svh(exl3_scales(*stored.out_scale, stored.out_signs_only, stored.out_features)) {
    view.in_features = stored.in_features;
    view.out_features = stored.out_features;
    view.bits = stored.bits;
    view.codebook = stored.codebook;
    view.data = stored.trellis->bytes.data();
    view.suh = suh;
    view.svh = svh;
  }
  NativeMatrix(const NativeMatrix&) = delete;
  NativeMatrix& operator=(const NativeMatrix&) = delete;

  std::vector<uint16_t> suh, svh;
  exl3::MatrixView view;
};

}  // namespace

std::byte* WeightMemory::allocate(int64_t bytes) {
  owned_bytes_ += bytes;
  if (backend_ == Backend::kCpu) return blocks_.emplace_back(bytes).data();
  filling_ = Buffer<std::byte>(bytes);
  return filling_.data();
}

std::byte* WeightMemory::keep() {
  if (backend_ == Backend::kCpu) return blocks_.back().data();
  // As on the host, 64 bytes behind each weight may be read.
  const int64_t bytes = (filling_.size() + 64 + 255) / 256 * 256;
  if (blocks_.empty() || used_bytes_ + bytes > blocks_.back().size()) {
    blocks_.emplace_back(std::max(bytes, kDeviceBlockBytes), tensor_memory(backend_));
    used_bytes_ = 0;
  }
  std::byte* const kept = blocks_.back().data() + used_bytes_;
  copy_now(backend_, kept, filling_.data(), size_t(filling_.size()));
  used_bytes_ += bytes;
  return kept;
}

const std::byte* WeightLoader::bytes_of(const io::StoredTensor& tensor, bool keep_mapped) {
  if (keep_mapped && memory_.backend() == Backend::kCpu && tensor.aligned_for<uint32_t>())
    return tensor.bytes.data();
  std::byte* copy = memory_.allocate(int64_t(tensor.bytes.size()));
  io::Checkpoint::read(tensor, 0, {copy, tensor.bytes.size()});
  return memory_.keep();
}

template <typename T>
std::span<const T> WeightLoader::keep_copy(std::span<const T> values) {
  std::memcpy(memory_.allocate(int64_t(values.size_bytes())), values.data(), values.size_bytes());
  return {reinterpret_cast<const T*>(memory_.keep()), values.size()};
}

std::span<const float> WeightLoader::keep(std::span<const float> values) {
  return keep_copy(values);
}

std::vector<float> WeightLoader::host_values(const std::string& name, int64_t rows,
                                             int64_t cols) const {
  const io::StoredTensor& tensor = checkpoint_.at(name);
  if (num_elements(tensor) != rows * cols)
    throw Error(ErrorCode::kDataCorrupt,
                io::mismatch(tensor, io::shape_text(std::array{rows, cols})));
  std::vector<float> values(size_t(rows * cols));
  to_f32(tensor, values.data());
  return values;
}

View<const float> WeightLoader::matrix(const std::string& name, int64_t rows, int64_t cols) {
  return {keep(host_values(name, rows, cols)).data(), rows, cols};
}

std::span<const float> WeightLoader::vector(const std::string& name, int64_t size) {
  return matrix(name, 1, size).row_span(0);
}

void WeightLoader::missing(const std::string& name, int64_t out_features,
                           int64_t in_features) const {
  throw Error(ErrorCode::kDataCorrupt, checkpoint_.directory() + ": tensor " +
                                           json::quoted(name + ".weight") + ": expected " +
                                           io::shape_text(std::array{out_features, in_features}) +
                                           ", found none");
}

StoredLinear WeightLoader::stored(const std::string& name, int64_t out_features,
                                  int64_t in_features) const {
  const auto found = find_linear(checkpoint_, name, out_features, in_features);
  if (!found) missing(name, out_features, in_features);
  return *found;
}

ops::LinearWeight WeightLoader::linear(const std::string& name, int64_t out_features,
                                       int64_t in_features) {
  return load(stored(name, out_features, in_features), false);
}

ops::LinearWeight WeightLoader::load(const StoredLinear& stored, bool keep_mapped) {
  ops::LinearWeight weight;
  weight.in_features = stored.in_features;
  weight.out_features = stored.out_features;
  switch (stored.format) {
    case WeightFormat::kPlain:
      weight.format = stored.weight->dtype == DType::kF32   ? Format::kF32
                      : stored.weight->dtype == DType::kF16 ? Format::kF16
                                                            : Format::kBf16;
      break;
    case WeightFormat::kFp8:
      weight.format = Format::kFp8Block32;
      break;
    case WeightFormat::kFp4:
      weight.format = Format::kFp4Block32;
      break;
    case WeightFormat::kExl3: {
      const NativeMatrix native(stored);
      const int64_t band_bytes = exl3::group_bytes(stored.in_features, stored.out_features,
                                                   stored.bits, exl3::Layout::kBand);
      std::byte* tiles = memory_.allocate(stored.out_features / exl3::kGroupDim * band_bytes);
      weight.format = Format::kExl3;
      weight.exl3 = exl3::reorder(native.view, exl3::Layout::kBand, tiles, band_bytes);
      weight.exl3.data = memory_.keep();
      weight.exl3.suh = keep_copy(native.view.suh);
      weight.exl3.svh = keep_copy(native.view.svh);
      io::Checkpoint::drop_pages(*stored.trellis);
      return weight;
    }
  }
  weight.data = bytes_of(*stored.weight, keep_mapped);
  if (stored.scale != nullptr)
    weight.scales = reinterpret_cast<const uint8_t*>(bytes_of(*stored.scale, keep_mapped));
  return weight;
}

std::vector<ops::LinearWeight> WeightLoader::grouped_linear(const std::string& name,
                                                            int64_t num_groups,
                                                            int64_t out_features,
                                                            int64_t in_features) {
  const std::vector<StoredLinear> found =
      find_grouped_linear(checkpoint_, name, num_groups, out_features, in_features);
  if (found.empty()) missing(name, num_groups * out_features, in_features);
  std::vector<ops::LinearWeight> groups;
  for (const StoredLinear& part : found) groups.push_back(load(part, false));
  if (found.size() == 1) {
    const ops::LinearWeight whole = groups[0];
    groups.clear();
    for (int64_t g = 0; g < num_groups; ++g)
      groups.push_back(whole.out_rows(g * out_features, (g + 1) * out_features));
  }
  return groups;
}

experts::ExpertMatrices WeightLoader::expert(const std::string& name, int64_t hidden,
                                             int64_t intermediate) {
  const StoredLinear gate = stored(name + ".w1", intermediate, hidden);
  const StoredLinear up = stored(name + ".w3", intermediate, hidden);
  const StoredLinear down = stored(name + ".w2", hidden, intermediate);
  const auto is_exl3 = [&](const StoredLinear& stored) {
    return stored.format == WeightFormat::kExl3 && stored.codebook == gate.codebook;
  };
  if (!is_exl3(gate) || !is_exl3(up) || !is_exl3(down))
    return {load(gate, true), load(up, true), load(down, true)};
  const NativeMatrix native_gate(gate), native_up(up), native_down(down);
  const exl3::ExpertView native{native_gate.view, native_up.view, native_down.view};
  const exl3::ExpertLayout layout(hidden, intermediate, gate.bits, up.bits, down.bits);
  std::byte* record = memory_.allocate(layout.record_bytes());
  layout.write(native, {record, size_t(layout.record_bytes())});
  const exl3::ExpertView view = layout.view(memory_.keep(), gate.codebook);
  const auto weight = [](const exl3::MatrixView& matrix) {
    ops::LinearWeight result;
    result.format = Format::kExl3;
    result.in_features = matrix.in_features;
    result.out_features = matrix.out_features;
    result.exl3 = matrix;
    return result;
  };
  for (const StoredLinear* stored : {&gate, &up, &down})
    io::Checkpoint::drop_pages(*stored->trellis);
  return {weight(view.gate), weight(view.up), weight(view.down)};
}

}  // namespace onecard::model
