#include "support/files.h"

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace onecard::test {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) throw std::runtime_error(path + ": cannot be read");
  return bytes;
}

std::string golden_path(const std::string& name) {
  return std::string(ONECARD_SOURCE_DIR) + "/tests/golden/" + name;
}

}  // namespace onecard::test
