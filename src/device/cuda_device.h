// One CUDA device with what it takes to run ops there: a stream and its scratch memory. Opened by
// cli, used by the engine thread. In a build without CUDA there is none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/exec.h"

namespace onecard {

/// CUDA devices that this build and machine can use; 0 without CUDA or driver.
int num_cuda_devices();

class CudaDevice {
 public:
  /// Scratch that is enough for every op; those of many rows take several passes with it.
  static constexpr int64_t kScratchBytes = int64_t{64} << 20;

  /// Opens device `index` for the calling thread. Throws kUnsupported in a build without CUDA,
  /// kNotFound where there is no such device.
  explicit CudaDevice(int index);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  /// Makes it the calling thread's device; every thread that allocates or runs ops calls it once.
  void use() const;
  Exec exec() const;

  const std::string& name() const;
  int64_t free_bytes() const;  // of its memory, now

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace onecard
