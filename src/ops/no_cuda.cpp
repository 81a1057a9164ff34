// Stands in for ops/cuda in a build without CUDA: every op refuses.
#include "base/error.h"
#include "ops/cuda/kernels.h"

namespace onecard::ops::cuda {
namespace {

[[noreturn]] void refuse(const char* op) {
  throw Error(ErrorCode::kUnsupported, std::string(op) + ": this build has no CUDA backend");
}

}  // namespace

void rms_norm(const Exec&, View<const float>, std::span<const float>, float, View<float>) {
  refuse("rms_norm");
}

}  // namespace onecard::ops::cuda
