// Files that tests read.
#pragma once

#include <string>

namespace onecard::test {

/// The bytes of a file; throws std::runtime_error when it cannot be read.
std::string read_file(const std::string& path);
/// The path of tests/golden/<name>.
std::string golden_path(const std::string& name);

}  // namespace onecard::test
