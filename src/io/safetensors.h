// The header of a safetensors file: an 8-byte little-endian length, that many bytes of JSON, then
// the data. The parser is for untrusted bytes: nothing in the header is believed before it is
// checked against the file's length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/dtype.h"

namespace onecard::io {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;  // empty: a scalar
  int64_t begin_bytes = 0;     // from the start of the file
  int64_t end_bytes = 0;  // one past the last byte; end - begin = product of shape * dtype size

  int64_t size_bytes() const { return end_bytes - begin_bytes; }
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // by begin_bytes: the order in which the file holds them
  std::vector<std::pair<std::string, std::string>> metadata;
  int64_t data_begin_bytes = 0;
};

/// Limits of what the parser accepts.
constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr int64_t kMaxTensorRank = 8;

/// The length of the JSON part, from a file's first 8 bytes. Throws kDataCorrupt when the file is
/// too short for it or it is beyond kMaxHeaderBytes. `file` is the name that errors show.
int64_t safetensors_header_bytes(std::span<const std::byte> first_bytes, int64_t file_size_bytes,
                                 std::string_view file);

/// Parses the file's first 8 + safetensors_header_bytes() bytes; more may follow, and are ignored.
/// Checked: JSON (depth, duplicate names), dtype, shape, products without overflow, extent equal to
/// shape times dtype and inside the file; no overlap, no gap, and the last tensor ends where the
/// file does. Throws kDataCorrupt naming file, tensor, expected and found; kUnsupported for a dtype
/// that is not known. Tensors need not be aligned to their element.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> first_bytes,
                                           int64_t file_size_bytes, std::string_view file);

/// "[5120, 2304]", as messages show shapes.
std::string shape_text(std::span<const int64_t> shape);

}  // namespace onecard::io
