#include "support/temp_dir.h"

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace onecard::test {

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "onecard_test_XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;  // a test's result does not depend on what it leaves behind
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace onecard::test
