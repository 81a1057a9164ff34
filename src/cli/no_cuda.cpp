// Stands in for cli/cuda in a build without CUDA.
#include "base/error.h"
#include "cli/kernel_bench.h"

namespace onecard::cli {

json::Value bench_cuda_kernels(const KernelBenchOptions&) {
  throw Error(ErrorCode::kUnsupported, "bench kernels: this build has no CUDA backend");
}

}  // namespace onecard::cli
