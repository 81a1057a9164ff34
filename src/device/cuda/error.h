// CUDA calls report through onecard::Error. A kDevice error is sticky: once the context is broken
// every later call fails with it too, so the engine ends and says so.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/error.h"

#define ONECARD_CUDA_CHECK(call)                                                                 \
  do {                                                                                           \
    const cudaError_t onecard_cuda_status = (call);                                              \
    if (onecard_cuda_status != cudaSuccess)                                                      \
      throw ::onecard::Error(::onecard::ErrorCode::kDevice,                                      \
                             std::string(#call ": ") + cudaGetErrorString(onecard_cuda_status)); \
  } while (false)
