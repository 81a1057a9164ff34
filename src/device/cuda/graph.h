// A recorded sequence of launches and copies, replayed with one call.
#pragma once

#include <utility>

#include "base/log.h"
#include "device/cuda/error.h"
#include "device/cuda/stream.h"

namespace onecard::cuda {

/// Owns an instantiated graph; move-only. What the recorded work reads and writes must outlive it.
class Graph {
 public:
  Graph() = default;
  /// Records what `work` queues on `stream`. Nothing runs meanwhile, and `work` may not wait for
  /// the device. When it throws, the recording is dropped and the error goes on.
  template <typename Work>
  static Graph record(const Stream& stream, const Work& work) {
    ONECARD_CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    cudaGraph_t recorded = nullptr;
    try {
      work();
    } catch (...) {
      if (cudaStreamEndCapture(stream.get(), &recorded) == cudaSuccess) cudaGraphDestroy(recorded);
      throw;
    }
    ONECARD_CUDA_CHECK(cudaStreamEndCapture(stream.get(), &recorded));
    Graph graph;
    const cudaError_t status = cudaGraphInstantiate(&graph.exec_, recorded, 0);
    cudaGraphDestroy(recorded);
    ONECARD_CUDA_CHECK(status);
    return graph;
  }
  ~Graph() {
    if (exec_ == nullptr) return;
    const cudaError_t freed = cudaGraphExecDestroy(exec_);
    if (freed != cudaSuccess) log::error("graph_free", {{"error", cudaGetErrorString(freed)}});
  }
  Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(exec_, other.exec_);
    return *this;
  }
  explicit operator bool() const { return exec_ != nullptr; }
  /// Queues the recorded work on `stream`.
  void launch(const Stream& stream) const {
    ONECARD_CUDA_CHECK(cudaGraphLaunch(exec_, stream.get()));
  }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace onecard::cuda
