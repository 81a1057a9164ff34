// A recorded sequence of launches and copies, replayed with one call.
#pragma once

#include <utility>

#include "base/log.h"
#include "device/cuda/error.h"

namespace onecard::cuda {

/// Owns an instantiated graph; move-only. What the recorded work reads and writes must outlive it.
class Graph {
 public:
  Graph() = default;
  /// Records what `work` queues on `stream`. Nothing runs meanwhile, and `work` may not wait for
  /// the device. When it throws, the recording is dropped and the error goes on.
  template <typename Work>
  static Graph record(cudaStream_t stream, const Work& work) {
    ONECARD_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    cudaGraph_t recorded = nullptr;
    try {
      work();
    } catch (...) {
      if (cudaStreamEndCapture(stream, &recorded) == cudaSuccess) cudaGraphDestroy(recorded);
      throw;
    }
    ONECARD_CUDA_CHECK(cudaStreamEndCapture(stream, &recorded));
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
  void launch(cudaStream_t stream) const { ONECARD_CUDA_CHECK(cudaGraphLaunch(exec_, stream)); }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace onecard::cuda
