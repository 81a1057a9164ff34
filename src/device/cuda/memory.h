// A block of the device's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/log.h"
#include "device/cuda/error.h"

namespace onecard::cuda {

/// One allocation, move-only. Freed without waiting: drain the streams that use it first.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  explicit DeviceBlock(int64_t bytes) : bytes_(bytes) {
    if (bytes > 0) ONECARD_CUDA_CHECK(cudaMalloc(&data_, size_t(bytes)));
  }
  ~DeviceBlock() {
    if (data_ == nullptr) return;
    const cudaError_t freed = cudaFree(data_);
    if (freed != cudaSuccess) log::error("device_free", {{"error", cudaGetErrorString(freed)}});
  }
  DeviceBlock(DeviceBlock&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBlock& operator=(DeviceBlock&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace onecard::cuda
