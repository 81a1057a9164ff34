// The program behind `onecard bench kernels --device cuda`, alone: small enough to be carried to a
// machine with a GPU. bench_cuda_kernels [--quick] [--only TEXT] [--json FILE]
#include <cstdio>
#include <exception>
#include <string>

#include "base/json.h"
#include "cli/kernel_bench.h"
#include "io/file.h"

int main(int argc, char** argv) {
  onecard::cli::KernelBenchOptions options;
  std::string json;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--quick") {
      options.quick = true;
    } else if (flag == "--only" && i + 1 < argc) {
      options.only = argv[++i];
    } else if (flag == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else {
      std::fprintf(stderr, "usage: %s [--quick] [--only TEXT] [--json FILE]\n", argv[0]);
      return 2;
    }
  }
  options.progress = [](const onecard::json::Value& entry) {
    std::fputs(onecard::cli::kernel_bench_line(entry).c_str(), stdout);
    std::fflush(stdout);
  };
  try {
    const onecard::json::Value report = onecard::cli::bench_cuda_kernels(options);
    std::printf("ceilings: %s\n", onecard::json::dump(*report.find("ceilings")).c_str());
    if (!json.empty()) onecard::io::write_file_atomically(json, onecard::json::dump(report) + "\n");
    for (const onecard::json::Value& entry : report.find("entries")->items())
      if (!entry.find("checked")->as_bool()) return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_cuda_kernels: %s\n", error.what());
    return 3;
  }
  return 0;
}
