// Stands in for device/cuda in a build without CUDA: there is no device, and none can be opened.
#include "base/error.h"
#include "device/cuda/runtime.h"
#include "device/cuda_device.h"
#include "device/recording.h"

namespace onecard {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::kUnsupported,
              "device cuda: this program was built without CUDA; build it with the preset cuda");
}

}  // namespace

int num_cuda_devices() { return 0; }

struct CudaDevice::State {
  std::string name;
};
CudaDevice::CudaDevice(int) { refuse(); }
CudaDevice::~CudaDevice() = default;
void CudaDevice::use() const { refuse(); }
Exec CudaDevice::exec() const { refuse(); }
const std::string& CudaDevice::name() const { return state_->name; }
int64_t CudaDevice::free_bytes() const { return 0; }

struct Recording::State {};
Recording::Recording() = default;
Recording::~Recording() = default;
Recording::Recording(Recording&&) noexcept = default;
Recording& Recording::operator=(Recording&&) noexcept = default;
Recording Recording::make(const Exec&, const std::function<void()>&) { refuse(); }
void Recording::launch(const Exec&) const { refuse(); }

namespace cuda {

void* allocate(Memory, size_t) { refuse(); }
void release(Memory, void*) noexcept {}
void queue_copy(const Exec&, void*, const void*, size_t) { refuse(); }
void synchronise(const Exec&) { refuse(); }
void copy_now(void*, const void*, size_t) { refuse(); }

}  // namespace cuda
}  // namespace onecard
