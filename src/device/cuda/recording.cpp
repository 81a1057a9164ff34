#include "device/recording.h"

#include "device/cuda/graph.h"

namespace onecard {

struct Recording::State {
  cuda::Graph graph;
};

Recording::Recording() = default;
Recording::~Recording() = default;
Recording::Recording(Recording&&) noexcept = default;
Recording& Recording::operator=(Recording&&) noexcept = default;

Recording Recording::make(const Exec& exec, const std::function<void()>& work) {
  Recording recording;
  recording.state_ = std::make_unique<State>(
      State{cuda::Graph::record(static_cast<cudaStream_t>(exec.stream), work)});
  return recording;
}

void Recording::launch(const Exec& exec) const {
  state_->graph.launch(static_cast<cudaStream_t>(exec.stream));
}

}  // namespace onecard
