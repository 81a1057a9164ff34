// CUDA calls report through onecard::Error: kDevice is sticky, it ends the engine.
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
