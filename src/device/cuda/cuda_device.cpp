#include "device/cuda_device.h"

#include <cuda_runtime_api.h>

#include <optional>

#include "base/error.h"
#include "device/cuda/error.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"

namespace onecard {

int num_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  return count;
}

struct CudaDevice::State {
  int index = 0;
  std::string name;
  cuda::DeviceBlock scratch;
  std::optional<cuda::Stream> stream;  // drained before the scratch goes
};

CudaDevice::CudaDevice(int index) : state_(std::make_unique<State>()) {
  if (index < 0 || index >= num_cuda_devices())
    throw Error(ErrorCode::kNotFound, "CUDA device " + std::to_string(index) + ": there are " +
                                          std::to_string(num_cuda_devices()));
  state_->index = index;
  use();
  cudaDeviceProp properties{};
  ONECARD_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  state_->name = properties.name;
  state_->stream.emplace();
  state_->scratch = cuda::DeviceBlock(kScratchBytes);
  // The counters are zero between ops.
  ONECARD_CUDA_CHECK(
      cudaMemsetAsync(state_->scratch.data(), 0, size_t(kScratchBytes), state_->stream->get()));
  ONECARD_CUDA_CHECK(cudaStreamSynchronize(state_->stream->get()));
}

CudaDevice::~CudaDevice() = default;

void CudaDevice::use() const { ONECARD_CUDA_CHECK(cudaSetDevice(state_->index)); }

Exec CudaDevice::exec() const {
  return {.backend = Backend::kCuda,
          .stream = state_->stream->get(),
          .scratch = {state_->scratch.data(), kScratchBytes}};
}

const std::string& CudaDevice::name() const { return state_->name; }

int64_t CudaDevice::free_bytes() const {
  size_t free_bytes = 0, total_bytes = 0;
  ONECARD_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return int64_t(free_bytes);
}

}  // namespace onecard
