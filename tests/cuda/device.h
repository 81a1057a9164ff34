// A device to test on: a stream, scratch memory, arrays that go there and back.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <span>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "device/exec.h"
#include "tensor/view.h"
#ifdef ONECARD_CUDA_EMULATED
#include "cuda_emulator/emulator.h"
#endif

namespace onecard::test {

inline bool has_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

/// Device memory with the values of a host array; freed with it.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::span<const T> values) : DeviceArray(int64_t(values.size())) {
    ONECARD_CUDA_CHECK(
        cudaMemcpyAsync(data(), values.data(), values.size_bytes(), cudaMemcpyDefault, nullptr));
    ONECARD_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(std::span<const T>(values)) {}
  /// `size` elements of no particular value; 256 bytes more may be read.
  explicit DeviceArray(int64_t size) : block_(size * int64_t(sizeof(T)) + 256), size_(size) {}
  T* data() const { return reinterpret_cast<T*>(block_.data()); }
  View<T> view(int64_t rows, int64_t cols) const { return {data(), rows, cols}; }
  View<T> view(int64_t rows, int64_t cols, int64_t stride) const {
    return {data(), rows, cols, stride};
  }
  std::span<T> span() const { return {data(), size_t(size_)}; }
  /// Waits for everything that is queued on the device.
  std::vector<T> host() const {
    std::vector<T> values(static_cast<size_t>(size_));
    ONECARD_CUDA_CHECK(cudaDeviceSynchronize());
    ONECARD_CUDA_CHECK(cudaMemcpyAsync(values.data(), data(), values.size() * sizeof(T),
                                       cudaMemcpyDefault, nullptr));
    ONECARD_CUDA_CHECK(cudaStreamSynchronize(nullptr));
    return values;
  }

 private:
  cuda::DeviceBlock block_;
  int64_t size_ = 0;
};

/// Tests of kernels. On a GPU once; emulated with threads in another order in every other test, so
/// that what depends on the order shows.
class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no CUDA device here";
    stream_.emplace();
    scratch_ = cuda::DeviceBlock(kScratchBytes);
    exec.backend = Backend::kCuda;
    exec.stream = stream_->get();
    exec.scratch = {scratch_.data(), kScratchBytes};
    ONECARD_CUDA_CHECK(
        cudaMemsetAsync(scratch_.data(), 0, DeviceScratch::kCounterBytes, stream_->get()));
    ONECARD_CUDA_CHECK(cudaStreamSynchronize(stream_->get()));
#ifdef ONECARD_CUDA_EMULATED
    static int num_tests = 0;
    using cuda_emulator::Order;
    constexpr Order kOrders[] = {Order::kAscending, Order::kDescending, Order::kShuffled};
    cuda_emulator::set_order(kOrders[num_tests++ % 3]);
#endif
  }
  void TearDown() override {
    if (!stream_) return;
    // Every op leaves its counters at zero.
    std::vector<unsigned> counters(DeviceScratch::kCounterBytes / sizeof(unsigned));
    ONECARD_CUDA_CHECK(cudaDeviceSynchronize());
    ONECARD_CUDA_CHECK(cudaMemcpyAsync(counters.data(), scratch_.data(),
                                       size_t(DeviceScratch::kCounterBytes), cudaMemcpyDefault,
                                       nullptr));
    ONECARD_CUDA_CHECK(cudaStreamSynchronize(nullptr));
    for (const unsigned counter : counters) ASSERT_EQ(counter, 0u) << "a counter is not zero again";
  }
  const cuda::Stream& stream() const { return *stream_; }

  Exec exec;

 private:
  static constexpr int64_t kScratchBytes = 64 << 20;
  std::optional<cuda::Stream> stream_;
  cuda::DeviceBlock scratch_;
};

}  // namespace onecard::test
