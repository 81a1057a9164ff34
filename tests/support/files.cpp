#include "support/files.h"

#include <filesystem>
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
  // A program that was carried to another machine runs in the root of a checkout there.
  static const bool built_here = std::filesystem::exists(ONECARD_SOURCE_DIR "/tests/golden");
  return std::string(built_here ? ONECARD_SOURCE_DIR : ".") + "/tests/golden/" + name;
}

}  // namespace onecard::test
