// onecard bench: measured speed of the parts.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/kernel_bench.h"
#include "io/file.h"

namespace onecard::cli {
namespace {

struct KernelFlags {
  std::string device = "cuda";
  std::string json;
  KernelBenchOptions options;
};

int run_kernels(KernelFlags flags) {
  require(flags.device == "cuda", ErrorCode::kUnsupported,
          "bench kernels: only --device cuda; the CPU's kernels are timed by scripts/bench_cpu");
  flags.options.progress = [](const json::Value& entry) {
    std::fputs(kernel_bench_line(entry).c_str(), stdout);
    std::fflush(stdout);
  };
  const json::Value report = bench_cuda_kernels(flags.options);
  if (!flags.json.empty()) io::write_file_atomically(flags.json, json::dump(report) + "\n");
  for (const json::Value& entry : report.find("entries")->items())
    if (!entry.find("checked")->as_bool()) return 1;
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Commands& commands) {
  CLI::App* bench = app.add_subcommand("bench", "Measure the parts of this build on this machine");
  bench->require_subcommand(1);
  auto flags = std::make_shared<KernelFlags>();
  CLI::App* kernels =
      bench->add_subcommand("kernels", "Check and time the kernels at the full model's geometry");
  kernels->add_option("--device", flags->device, "cuda")->capture_default_str();
  kernels->add_option("--json", flags->json, "Write the results to this file");
  kernels
      ->add_option("--repetitions", flags->options.repetitions,
                   "Replays of which the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  kernels->add_option("--only", flags->options.only, "Entries whose name contains this");
  kernels->add_flag("--quick", flags->options.quick, "Leave out what needs more than 8 GB of VRAM");
  kernels->callback(
      [&commands, flags] { commands.selected = [flags] { return run_kernels(*flags); }; });
}

}  // namespace onecard::cli
