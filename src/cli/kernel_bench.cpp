#include "cli/kernel_bench.h"

#include <cstdio>

namespace onecard::cli {

std::string kernel_bench_line(const json::Value& entry) {
  const auto number = [&](const char* key) {
    const json::Value* const value = entry.find(key);
    return value != nullptr ? value->as_double() : 0.0;
  };
  char line[256];
  std::snprintf(line, sizeof(line), "%-52s %10.2f us %7.0f GB/s %6.1f TFLOP/s %5.1f%%  %s\n",
                entry.find("name")->as_string().c_str(),
                entry.find("us")->find("median")->as_double(), number("gb_s"), number("tflop_s"),
                100 * number("share_of_ceiling"),
                entry.find("checked")->as_bool() ? "ok" : "WRONG RESULT");
  return line;
}

}  // namespace onecard::cli
