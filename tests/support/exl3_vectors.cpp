#include "support/exl3_vectors.h"

#include <cstring>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "tensor/dtype.h"

namespace onecard::test {
namespace {

// From the checkout that the test was built in; a program that was carried elsewhere looks in the
// working directory.
std::string read_file(const std::string& path) {
  std::ifstream in(ONECARD_SOURCE_DIR "/" + path, std::ios::binary);
  if (!in) in.open(path, std::ios::binary);
  if (!in) throw Error(ErrorCode::kNotFound, "exl3 vectors: cannot read " + path);
  std::ostringstream all;
  all << in.rdbuf();
  return std::move(all).str();
}

}  // namespace

const Exl3Vectors& Exl3Vectors::get() {
  static const Exl3Vectors vectors;
  return vectors;
}

Exl3Vectors::Exl3Vectors()
    : manifest_(json::parse(read_file("tests/golden/exl3/manifest.json"))),
      blob_(read_file("tests/golden/exl3/vectors.bin")) {}

template <typename T>
std::vector<T> Exl3Vectors::raw(std::string_view name) const {
  for (const json::Value& array : manifest_.find("arrays")->items()) {
    if (array.find("name")->as_string() != name) continue;
    const auto offset = size_t(*array.find("offset")->as_int64());
    const auto bytes = size_t(*array.find("bytes")->as_int64());
    std::vector<T> values(bytes / sizeof(T));
    std::memcpy(values.data(), blob_.data() + offset, bytes);
    return values;
  }
  throw Error(ErrorCode::kNotFound, "exl3 vectors: no array " + std::string(name));
}

std::vector<uint16_t> Exl3Vectors::u16(std::string_view name) const { return raw<uint16_t>(name); }
std::vector<float> Exl3Vectors::f32(std::string_view name) const { return raw<float>(name); }
std::vector<double> Exl3Vectors::f64(std::string_view name) const { return raw<double>(name); }
std::vector<int32_t> Exl3Vectors::i32(std::string_view name) const { return raw<int32_t>(name); }

std::vector<float> Exl3Vectors::f16(std::string_view name) const {
  std::vector<float> values;
  for (const uint16_t bits : u16(name)) values.push_back(f16_to_f32(bits));
  return values;
}

}  // namespace onecard::test
