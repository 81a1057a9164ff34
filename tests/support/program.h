// The onecard program, run as a user would.
#pragma once

#include <string>
#include <vector>

namespace onecard::test {

struct ProgramResult {
  int exit_code = -1;  // 128 and the signal's number when a signal ended it
  std::string out;
  std::string err;
};

/// Runs this build's onecard with `arguments` and `input` on its standard input, and waits for it.
ProgramResult run_onecard(const std::vector<std::string>& arguments, const std::string& input = "");

}  // namespace onecard::test
