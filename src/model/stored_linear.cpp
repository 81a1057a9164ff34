#include "model/stored_linear.h"

#include <array>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "io/safetensors.h"

namespace onecard::model {
namespace {

constexpr int64_t kScaleBlock = 32;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

[[noreturn]] void fail(const io::StoredTensor& tensor, const std::string& expected,
                       ErrorCode code = ErrorCode::kDataCorrupt) {
  throw Error(code, io::mismatch(tensor, expected));
}

void expect(const io::StoredTensor& tensor, std::initializer_list<DType> dtypes,
            std::initializer_list<int64_t> shape) {
  bool known = false;
  std::string names;
  for (const DType dtype : dtypes) {
    known = known || tensor.dtype == dtype;
    names += (names.empty() ? "" : " or ") + std::string(dtype_name(dtype));
  }
  if (!known || !std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end()))
    fail(tensor, names + " " + io::shape_text({shape.begin(), shape.size()}));
}

const io::StoredTensor& need(const io::Checkpoint& checkpoint, const io::StoredTensor& beside,
                             const std::string& name) {
  const io::StoredTensor* tensor = checkpoint.find(name);
  if (tensor == nullptr)
    throw Error(ErrorCode::kDataCorrupt, beside.file->path() + ": tensor " + json::quoted(name) +
                                             ": expected it beside " + json::quoted(beside.name) +
                                             ", found none");
  return *tensor;
}

// The scales of one side: fp16 numbers, or in legacy files one sign bit each.
const io::StoredTensor* find_scales(const io::Checkpoint& checkpoint, const StoredLinear& linear,
                                    const std::string& numbers, const std::string& signs,
                                    int64_t size, bool& signs_only) {
  const io::StoredTensor* packed = checkpoint.find(signs);
  const io::StoredTensor* plain = checkpoint.find(numbers);
  if (packed != nullptr && plain != nullptr)
    throw Error(ErrorCode::kDataCorrupt, plain->file->path() + ": tensor " + json::quoted(numbers) +
                                             ": expected it or " + json::quoted(signs) +
                                             ", found both");
  signs_only = packed != nullptr;
  if (packed != nullptr) {
    expect(*packed, {DType::kI16, DType::kU16}, {size / exl3::kTileDim});
    return packed;
  }
  const io::StoredTensor& tensor = need(checkpoint, *linear.trellis, numbers);
  expect(tensor, {DType::kF16}, {size});
  return &tensor;
}

StoredLinear read_exl3(const io::Checkpoint& checkpoint, const std::string& module,
                       StoredLinear linear) {
  const io::StoredTensor& trellis = *linear.trellis;
  const int64_t in_tiles = linear.in_features / exl3::kTileDim;
  const int64_t out_tiles = linear.out_features / exl3::kTileDim;
  if (linear.in_features % exl3::kGroupDim != 0 || linear.out_features % exl3::kGroupDim != 0)
    fail(trellis,
         "dimensions that are multiples of 128 for a matrix of " +
             io::shape_text(std::array{linear.out_features, linear.in_features}),
         ErrorCode::kUnsupported);
  if (trellis.shape.size() != 3 || trellis.shape[0] != in_tiles || trellis.shape[1] != out_tiles ||
      (trellis.dtype != DType::kI16 && trellis.dtype != DType::kU16))
    fail(trellis, "I16 " + io::shape_text(std::array{in_tiles, out_tiles}) + " times 16 K");
  const int64_t words = trellis.shape[2];
  if (words % 16 != 0 || words < 16 || words > 16 * 8)
    fail(trellis, "16 to 128 words a tile, a multiple of 16 (K from 1 to 8)",
         ErrorCode::kUnsupported);
  linear.bits = int(words / 16);
  linear.in_scale = find_scales(checkpoint, linear, module + ".suh", module + ".su",
                                linear.in_features, linear.in_signs_only);
  linear.out_scale = find_scales(checkpoint, linear, module + ".svh", module + ".sv",
                                 linear.out_features, linear.out_signs_only);
  const io::StoredTensor* mul1 = checkpoint.find(module + ".mul1");
  const io::StoredTensor* mcg = checkpoint.find(module + ".mcg");
  if (mul1 != nullptr && mcg != nullptr)
    throw Error(ErrorCode::kDataCorrupt, mul1->file->path() + ": tensor " +
                                             json::quoted(mul1->name) + ": expected it or " +
                                             json::quoted(mcg->name) + ", found both");
  linear.marker = mul1 != nullptr ? mul1 : mcg;
  if (linear.marker != nullptr && linear.marker->bytes.size() != 4)
    fail(*linear.marker, "I32 []");  // one number; its value means nothing
  linear.codebook = mul1 != nullptr  ? exl3::Codebook::kMul1
                    : mcg != nullptr ? exl3::Codebook::kMcg
                                     : exl3::Codebook::k3Inst;
  return linear;
}

}  // namespace

const char* weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kPlain:
      return "plain";
    case WeightFormat::kFp8:
      return "fp8";
    case WeightFormat::kFp4:
      return "fp4";
    case WeightFormat::kExl3:
      return "exl3";
  }
  return "?";
}

std::optional<StoredLinear> find_linear(const io::Checkpoint& checkpoint, const std::string& module,
                                        int64_t out_features, int64_t in_features) {
  StoredLinear linear;
  linear.out_features = out_features;
  linear.in_features = in_features;
  linear.weight = checkpoint.find(module + ".weight");
  linear.trellis = checkpoint.find(module + ".trellis");
  if (linear.trellis != nullptr) {
    if (linear.weight != nullptr)
      throw Error(ErrorCode::kDataCorrupt,
                  linear.trellis->file->path() + ": tensor " + json::quoted(linear.trellis->name) +
                      ": expected it or " + json::quoted(linear.weight->name) + ", found both");
    linear.format = WeightFormat::kExl3;
    return read_exl3(checkpoint, module, linear);
  }
  if (linear.weight == nullptr) return std::nullopt;
  const io::StoredTensor& weight = *linear.weight;
  switch (weight.dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBf16:
      expect(weight, {weight.dtype}, {out_features, in_features});
      return linear;
    case DType::kF8E4m3:
      linear.format = WeightFormat::kFp8;
      expect(weight, {DType::kF8E4m3}, {out_features, in_features});
      linear.scale = &need(checkpoint, weight, module + ".scale");
      expect(*linear.scale, {DType::kF8E8m0},
             {ceil_div(out_features, kScaleBlock), ceil_div(in_features, kScaleBlock)});
      return linear;
    case DType::kI8:
    case DType::kU8:
      linear.format = WeightFormat::kFp4;
      expect(weight, {weight.dtype}, {out_features, ceil_div(in_features, 2)});
      linear.scale = &need(checkpoint, weight, module + ".scale");
      expect(*linear.scale, {DType::kF8E8m0}, {out_features, ceil_div(in_features, kScaleBlock)});
      return linear;
    default:
      fail(weight,
           "F32, F16, BF16, F8_E4M3 or I8 " + io::shape_text(std::array{out_features, in_features}),
           ErrorCode::kUnsupported);
  }
}

std::vector<StoredLinear> find_grouped_linear(const io::Checkpoint& checkpoint,
                                              const std::string& module, int64_t num_groups,
                                              int64_t out_features, int64_t in_features) {
  if (const auto whole = find_linear(checkpoint, module, num_groups * out_features, in_features))
    return {*whole};
  std::vector<StoredLinear> slices;
  for (int64_t i = 0; i < num_groups; ++i) {
    const std::string name = module + ".slice." + std::to_string(i);
    const auto slice = find_linear(checkpoint, name, out_features, in_features);
    if (!slice && i == 0) return {};
    if (!slice)
      throw Error(ErrorCode::kDataCorrupt,
                  checkpoint.directory() + ": tensor " + json::quoted(name + ".trellis") +
                      ": expected a matrix " +
                      io::shape_text(std::array{out_features, in_features}) + ", found none");
    slices.push_back(*slice);
  }
  return slices;
}

}  // namespace onecard::model
