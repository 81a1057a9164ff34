// A point on a stream that the host can wait for, and the time between two of them.
#pragma once

#include <utility>

#include "base/log.h"
#include "device/cuda/error.h"
#include "device/cuda/stream.h"

namespace onecard::cuda {

class Event {  // owns one CUDA event; move-only
 public:
  enum class Timing { kOff, kOn };
  explicit Event(Timing timing = Timing::kOff) {
    ONECARD_CUDA_CHECK(
        cudaEventCreateWithFlags(&event_, timing == Timing::kOn ? 0 : cudaEventDisableTiming));
  }
  ~Event() {
    if (event_ == nullptr) return;
    const cudaError_t freed = cudaEventDestroy(event_);
    if (freed != cudaSuccess) log::error("event_free", {{"error", cudaGetErrorString(freed)}});
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }

  void record(const Stream& stream) { ONECARD_CUDA_CHECK(cudaEventRecord(event_, stream.get())); }
  void wait() const { ONECARD_CUDA_CHECK(cudaEventSynchronize(event_)); }
  /// From `begin` to this one; both recorded with timing on and reached.
  float microseconds_since(const Event& begin) const {
    float ms = 0;
    ONECARD_CUDA_CHECK(cudaEventElapsedTime(&ms, begin.event_, event_));
    return ms * 1000;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace onecard::cuda
