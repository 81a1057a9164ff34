// Memory of the device, planned before any of it is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

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

/// What will be allocated, part by part, so that a plan that does not fit is refused as a whole and
/// by name.
class MemoryPlan {
 public:
  static constexpr int64_t kAlignment = 256;

  void add(std::string part, int64_t bytes) {
    parts_.push_back({std::move(part), aligned(bytes)});
    total_bytes_ += aligned(bytes);
  }
  int64_t total_bytes() const { return total_bytes_; }
  static int64_t aligned(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  /// Throws kResourceExhausted, naming every part, where the total exceeds `limit_bytes`.
  void require_fits(int64_t limit_bytes, const std::string& limit_name) const {
    if (total_bytes_ <= limit_bytes) return;
    std::string text = "device memory: " + std::to_string(total_bytes_) + " bytes are needed, " +
                       limit_name + " is " + std::to_string(limit_bytes) + ":";
    for (const Part& part : parts_) text += " " + part.name + " " + std::to_string(part.bytes);
    throw Error(ErrorCode::kResourceExhausted, text);
  }

 private:
  struct Part {
    std::string name;
    int64_t bytes;
  };
  std::vector<Part> parts_;
  int64_t total_bytes_ = 0;
};

/// Hands out one block front to back; nothing is given back before all of it is.
class Arena {
 public:
  Arena() = default;
  explicit Arena(int64_t bytes) : block_(bytes) {}

  /// `count` elements, aligned to MemoryPlan::kAlignment, not initialised. Throws
  /// kResourceExhausted where the plan was smaller.
  template <typename T>
  T* take(int64_t count) {
    const int64_t bytes = MemoryPlan::aligned(count * int64_t(sizeof(T)));
    if (used_bytes_ + bytes > block_.bytes())
      throw Error(ErrorCode::kResourceExhausted,
                  "device arena: " + std::to_string(bytes) + " more bytes on top of " +
                      std::to_string(used_bytes_) + " exceed the planned " +
                      std::to_string(block_.bytes()));
    T* const taken = reinterpret_cast<T*>(block_.data() + used_bytes_);
    used_bytes_ += bytes;
    return taken;
  }
  int64_t used_bytes() const { return used_bytes_; }
  int64_t bytes() const { return block_.bytes(); }

 private:
  DeviceBlock block_;
  int64_t used_bytes_ = 0;
};

}  // namespace onecard::cuda
