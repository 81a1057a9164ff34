#include "support/golden.h"

#include <stdexcept>

#include "support/files.h"

namespace onecard::test {

json::Value load_golden(const std::string& name) {
  return json::parse(read_file(golden_path(name)));
}

const json::Value& member(const json::Value& value, const std::string& key) {
  const json::Value* found = value.find(key);
  if (found == nullptr) throw std::runtime_error("golden without " + key);
  return *found;
}

std::vector<int32_t> ids(const json::Value& value) {
  std::vector<int32_t> result;
  for (const json::Value& item : value.items()) {
    const auto id = item.as_int64();
    if (!id) throw std::runtime_error("golden with " + json::dump(item) + " among its ids");
    result.push_back(int32_t(*id));
  }
  return result;
}

std::vector<float> row(const json::Value& value) {
  std::vector<float> result;
  for (const json::Value& item : value.items()) result.push_back(float(item.as_double()));
  return result;
}

std::vector<std::vector<float>> rows(const json::Value& value) {
  std::vector<std::vector<float>> result;
  for (const json::Value& item : value.items()) result.push_back(row(item));
  return result;
}

}  // namespace onecard::test
