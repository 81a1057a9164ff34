#include "io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace onecard::io {
namespace {

constexpr int64_t kLengthBytes = 8;

// Objects inside each other in a header: the header, a tensor, its shape.
constexpr int kMaxDepth = 3;

// Where something was found wrong; every message begins with it.
struct Place {
  std::string_view file;
  std::string_view tensor;

  [[noreturn]] void fail(const std::string& what, ErrorCode code = ErrorCode::kDataCorrupt) const {
    std::string message(file);
    message += ": ";
    if (!tensor.empty()) message += "tensor " + json::quoted(tensor) + ": ";
    throw Error(code, message + what);
  }
};

const json::Value& member(const Place& place, const json::Value& object, const char* key) {
  const json::Value* value = object.find(key);
  if (value == nullptr) place.fail(std::string("expected a member \"") + key + "\", found none");
  return *value;
}

// A count or an offset.
int64_t non_negative(const Place& place, const json::Value& value, const char* what) {
  const std::optional<int64_t> number = value.is_number() ? value.as_int64() : std::nullopt;
  if (!number || *number < 0)
    place.fail(std::string("expected ") + what + " of integers from 0 to 2^63-1, found " +
               (value.is_number() ? value.lexeme().substr(0, 40) : "something else"));
  return *number;
}

std::vector<int64_t> integer_list(const Place& place, const json::Value& value, const char* what) {
  if (!value.is_array()) place.fail(std::string("expected ") + what + " to be a list");
  std::vector<int64_t> list;
  if (int64_t(value.items().size()) > kMaxTensorRank)
    place.fail(std::string("expected at most ") + std::to_string(kMaxTensorRank) + " numbers in " +
               what + ", found " + std::to_string(value.items().size()));
  list.reserve(value.items().size());
  for (const json::Value& item : value.items()) list.push_back(non_negative(place, item, what));
  return list;
}

TensorInfo parse_tensor(const Place& place, const json::Value& entry, int64_t data_begin) {
  if (!entry.is_object()) place.fail("expected an object with dtype, shape and data_offsets");
  TensorInfo tensor;
  tensor.name = place.tensor;
  const json::Value& dtype = member(place, entry, "dtype");
  if (!dtype.is_string()) place.fail("expected dtype to be a string");
  const std::optional<DType> known = dtype_from_name(dtype.as_string());
  if (!known)
    place.fail("expected a dtype that is known here, found " +
                   json::quoted(std::string_view(dtype.as_string()).substr(0, 40)),
               ErrorCode::kUnsupported);
  tensor.dtype = *known;
  tensor.shape = integer_list(place, member(place, entry, "shape"), "shape");
  const std::vector<int64_t> offsets =
      integer_list(place, member(place, entry, "data_offsets"), "data_offsets");
  if (offsets.size() != 2)
    place.fail("expected two data_offsets, found " + std::to_string(offsets.size()));
  if (offsets[0] > offsets[1] || offsets[1] > std::numeric_limits<int64_t>::max() - data_begin)
    place.fail("expected data_offsets that do not decrease or overflow, found " +
               shape_text(offsets));
  int64_t expected = dtype_size(tensor.dtype);
  for (const int64_t extent : tensor.shape)
    if (__builtin_mul_overflow(expected, extent, &expected))
      place.fail("the shape " + shape_text(tensor.shape) + " overflows 63 bits");
  if (expected != offsets[1] - offsets[0])
    place.fail(std::string("expected ") + std::to_string(expected) + " bytes for " +
               dtype_name(tensor.dtype) + " " + shape_text(tensor.shape) + ", found data_offsets " +
               shape_text(offsets) + " of " + std::to_string(offsets[1] - offsets[0]) + " bytes");
  tensor.begin_bytes = data_begin + offsets[0];
  tensor.end_bytes = data_begin + offsets[1];
  return tensor;
}

void parse_metadata(std::string_view file, const json::Value& entry, SafetensorsHeader& header) {
  const Place place{file, "__metadata__"};
  if (!entry.is_object()) place.fail("expected an object of strings");
  for (const auto& [key, value] : entry.members()) {
    if (!value.is_string()) place.fail("expected a string for the key " + json::quoted(key));
    header.metadata.emplace_back(key, value.as_string());
  }
}

// Tensors lie back to back from the data's first byte to the file's last. `tensors` is sorted.
void check_extents(std::string_view file, const SafetensorsHeader& header, int64_t file_size) {
  int64_t expected_begin = header.data_begin_bytes;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& tensor : header.tensors) {
    const Place place{file, tensor.name};
    if (tensor.begin_bytes != expected_begin) {
      const std::string after =
          previous == nullptr ? std::string("the header") : json::quoted(previous->name);
      place.fail((tensor.begin_bytes < expected_begin ? "overlaps " + after
                                                      : "leaves a gap after " + after) +
                 ": expected its first byte at " + std::to_string(expected_begin) + ", found " +
                 std::to_string(tensor.begin_bytes));
    }
    expected_begin = tensor.end_bytes;
    previous = &tensor;
  }
  const std::string sizes = "expected a file of " + std::to_string(expected_begin) +
                            " bytes, found " + std::to_string(file_size);
  if (file_size < expected_begin) {
    const auto cut = std::find_if(header.tensors.begin(), header.tensors.end(),
                                  [&](const TensorInfo& t) { return t.end_bytes > file_size; });
    Place{file, cut->name}.fail("is cut off: " + sizes + " (its bytes are " +
                                std::to_string(cut->begin_bytes) + " to " +
                                std::to_string(cut->end_bytes) + ")");
  }
  if (file_size > expected_begin)
    Place{file, previous == nullptr ? std::string_view() : std::string_view(previous->name)}.fail(
        "is the last one, but " + std::to_string(file_size - expected_begin) +
        " bytes follow: " + sizes);
}

}  // namespace

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

int64_t safetensors_header_bytes(std::span<const std::byte> first_bytes, int64_t file_size_bytes,
                                 std::string_view file) {
  const Place place{file, {}};
  if (file_size_bytes < kLengthBytes || int64_t(first_bytes.size()) < kLengthBytes)
    place.fail("expected a safetensors file of 10 bytes or more, found " +
               std::to_string(file_size_bytes));
  uint64_t length = 0;
  for (int64_t i = kLengthBytes - 1; i >= 0; --i)
    length = length << 8 | std::to_integer<uint64_t>(first_bytes[size_t(i)]);
  const int64_t limit = std::min(kMaxHeaderBytes, file_size_bytes - kLengthBytes);
  if (length < 2 || length > uint64_t(limit))
    place.fail("the first 8 bytes are no safetensors header length: expected 2 to " +
               std::to_string(limit) + " in a file of " + std::to_string(file_size_bytes) +
               " bytes, found " + std::to_string(length));
  return int64_t(length);
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> first_bytes,
                                           int64_t file_size_bytes, std::string_view file) {
  const int64_t length = safetensors_header_bytes(first_bytes, file_size_bytes, file);
  require(int64_t(first_bytes.size()) >= kLengthBytes + length, ErrorCode::kInvalidArgument,
          "parse_safetensors_header: fewer bytes given than the header has");
  const std::string_view text(reinterpret_cast<const char*>(first_bytes.data()) + kLengthBytes,
                              size_t(length));
  const Place place{file, {}};
  json::Value root;
  try {
    root =
        json::parse(text, {.max_depth = kMaxDepth, .duplicate_keys = json::DuplicateKeys::kReject});
  } catch (const Error& error) {
    place.fail(std::string("the safetensors header is broken: ") + error.what());
  }
  if (!root.is_object()) place.fail("expected the safetensors header to be an object");

  SafetensorsHeader header;
  header.data_begin_bytes = kLengthBytes + length;
  header.tensors.reserve(root.members().size());
  for (const auto& [name, entry] : root.members()) {
    if (name == "__metadata__") {
      parse_metadata(file, entry, header);
      continue;
    }
    if (name.empty()) place.fail("expected every tensor to have a name, found an empty one");
    header.tensors.push_back(parse_tensor({file, name}, entry, header.data_begin_bytes));
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorInfo& a, const TensorInfo& b) {
                     return a.begin_bytes != b.begin_bytes ? a.begin_bytes < b.begin_bytes
                                                           : a.end_bytes < b.end_bytes;
                   });
  check_extents(file, header, file_size_bytes);
  return header;
}

}  // namespace onecard::io
