// Times the CUDA kernels at the geometry of the full model, each result checked first.
#pragma once

#include <functional>
#include <string>

#include "base/json.h"

namespace onecard::cli {

struct KernelBenchOptions {
  int repetitions = 7;
  bool quick = false;  // leaves out what needs more than 8 GB of device memory
  std::string only;    // entries whose name contains this
  std::function<void(const json::Value&)> progress;  // sees every entry as it is done
};

/// {"device": .., "ceilings": {..}, "entries": [{"name", "us": {min, median, max}, "checked",
/// "error", "gb_s" or "tflop_s", "share_of_ceiling", ..}]}. Weights are cold: each launch of a
/// replayed graph reads other copies than the one before, more than the second-level cache holds.
/// Throws kUnsupported in a build without CUDA, kDevice where there is no device.
json::Value bench_cuda_kernels(const KernelBenchOptions& options);

/// An entry as one line of a table, with its end of line.
std::string kernel_bench_line(const json::Value& entry);

}  // namespace onecard::cli
