// Included by ops/*.cpp alone.
#pragma once

#include <string>

#include "base/error.h"
#include "device/exec.h"

namespace onecard::ops {

/// For ops that only the CPU backend has.
inline void require_cpu(const Exec& exec, const char* op) {
  if (exec.backend != Backend::kCpu)
    throw Error(ErrorCode::kUnsupported, std::string(op) + ": there is no CUDA kernel for it");
}

}  // namespace onecard::ops
