#include "device/cuda/runtime.h"

#include <cuda_runtime_api.h>

#include <string>

#include "base/log.h"
#include "device/cuda/error.h"

namespace onecard::cuda {

void* allocate(Memory memory, size_t bytes) {
  void* data = nullptr;
  const size_t size = bytes > 0 ? bytes : 1;
  const cudaError_t status =
      memory == Memory::kPinned ? cudaMallocHost(&data, size) : cudaMalloc(&data, size);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // not sticky: the next call starts afresh
    throw Error(ErrorCode::kResourceExhausted,
                std::string(memory == Memory::kPinned ? "pinned" : "device") +
                    " memory: " + std::to_string(bytes) + " more bytes were refused");
  }
  ONECARD_CUDA_CHECK(status);
  ONECARD_CUDA_CHECK(cudaMemsetAsync(data, 0, size, nullptr));
  ONECARD_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  return data;
}

void release(Memory memory, void* data) noexcept {
  const cudaError_t freed = memory == Memory::kPinned ? cudaFreeHost(data) : cudaFree(data);
  if (freed != cudaSuccess) log::error("device_free", {{"error", cudaGetErrorString(freed)}});
}

void queue_copy(const Exec& exec, void* to, const void* from, size_t bytes) {
  ONECARD_CUDA_CHECK(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(exec.stream)));
}

void synchronise(const Exec& exec) {
  ONECARD_CUDA_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(exec.stream)));
}

void copy_now(void* to, const void* from, size_t bytes) {
  // Streams of their own do not wait for the default one, nor it for them.
  ONECARD_CUDA_CHECK(cudaDeviceSynchronize());
  ONECARD_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, nullptr));
  ONECARD_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

}  // namespace onecard::cuda
