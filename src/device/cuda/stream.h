// A CUDA stream with an owner.
#pragma once

#include <utility>

#include "base/log.h"
#include "device/cuda/error.h"

namespace onecard::cuda {

class Stream {  // owns one CUDA stream; move-only; drained before it is destroyed
 public:
  Stream() { ONECARD_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { reset(); }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);  // what was ours is drained and destroyed with `other`
    return *this;
  }
  cudaStream_t get() const { return stream_; }  // borrowed: never destroy it, never keep it

 private:
  void reset() noexcept {  // also runs while unwinding: it reports, and never throws
    if (stream_ == nullptr) return;
    const cudaError_t drained = cudaStreamSynchronize(stream_);
    const cudaError_t freed = cudaStreamDestroy(stream_);
    if (drained != cudaSuccess)
      log::error("stream_drain", {{"error", cudaGetErrorString(drained)}});
    if (freed != cudaSuccess) log::error("stream_free", {{"error", cudaGetErrorString(freed)}});
  }
  cudaStream_t stream_ = nullptr;
};

}  // namespace onecard::cuda
