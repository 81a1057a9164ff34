// io/safetensors: any bytes either parse or throw Error; the tensors of what parses lie back to
// back from the header to the end of the file, each as long as its shape says. The input is taken
// as a file, and once more as the JSON of a header before as many data bytes as its last byte says,
// so that mutations need not keep a length right.
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "io/safetensors.h"

namespace {

using onecard::io::SafetensorsHeader;

void check(std::string_view file, int64_t file_size) {
  SafetensorsHeader header;
  try {
    header = onecard::io::parse_safetensors_header(std::as_bytes(std::span(file)), file_size, "f");
  } catch (const onecard::Error& error) {
    if (error.code() != onecard::ErrorCode::kDataCorrupt &&
        error.code() != onecard::ErrorCode::kUnsupported)
      std::abort();
    return;
  }
  int64_t end = header.data_begin_bytes;
  if (end > file_size) std::abort();
  for (const onecard::io::TensorInfo& tensor : header.tensors) {
    __int128 size = onecard::dtype_size(tensor.dtype);
    bool is_empty = false;
    for (const int64_t extent : tensor.shape) {
      if (extent < 0) std::abort();
      is_empty = is_empty || extent == 0;
      if (!is_empty && (size *= extent) > file_size) std::abort();
    }
    if (is_empty) size = 0;
    if (tensor.name.empty() || tensor.begin_bytes != end ||
        tensor.end_bytes - tensor.begin_bytes != size)
      std::abort();
    end = tensor.end_bytes;
  }
  if (end != file_size) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  // Whatever is read comes from the bytes given: a file may be larger than what was read of it, but
  // the parser asks for a whole header.
  try {
    const int64_t length =
        onecard::io::safetensors_header_bytes(std::as_bytes(std::span(input)), int64_t(size), "f");
    if (8 + length <= int64_t(size)) check(input, int64_t(size));
  } catch (const onecard::Error& error) {
    if (error.code() != onecard::ErrorCode::kDataCorrupt) std::abort();
  }
  if (size < 3) return 0;
  const std::string_view json = input.substr(0, size - 1);
  std::string file;
  for (int i = 0; i < 8; ++i) file += char(json.size() >> (8 * i) & 0xff);
  file += json;
  check(file, int64_t(file.size()) + data[size - 1]);
  return 0;
}
