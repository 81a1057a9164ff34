// Work that was queued once and can be queued again with one call: a CUDA graph. Ops on the CPU
// have run when they return, and there is nothing to record.
#pragma once

#include <functional>
#include <memory>

#include "device/exec.h"

namespace onecard {

class Recording {
 public:
  Recording();
  ~Recording();
  Recording(Recording&&) noexcept;
  Recording& operator=(Recording&&) noexcept;

  /// Records what `work` queues on exec.stream; none of it runs. `work` may not wait for the
  /// device, and every kernel in it has been launched before. What the recorded work reads and
  /// writes must outlive it. When `work` throws the recording is dropped and the error goes on.
  /// CUDA alone.
  static Recording make(const Exec& exec, const std::function<void()>& work);

  explicit operator bool() const { return state_ != nullptr; }
  /// Queues all of it on exec.stream.
  void launch(const Exec& exec) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace onecard
