// The arrays of tests/golden/exl3, by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace onecard::test {

class Exl3Vectors {
 public:
  static const Exl3Vectors& get();  // read once; throws Error when the files are not there

  const json::Value& manifest() const { return manifest_; }
  /// The array `name` as the element type that its suffix states; throws kNotFound.
  std::vector<uint16_t> u16(std::string_view name) const;
  std::vector<uint16_t> f16_bits(std::string_view name) const { return u16(name); }
  std::vector<float> f16(std::string_view name) const;
  std::vector<float> f32(std::string_view name) const;
  std::vector<double> f64(std::string_view name) const;
  std::vector<int32_t> i32(std::string_view name) const;

 private:
  Exl3Vectors();
  template <typename T>
  std::vector<T> raw(std::string_view name) const;

  json::Value manifest_;
  std::string blob_;
};

}  // namespace onecard::test
