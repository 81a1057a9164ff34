#include "device/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "device/cuda_device.h"

namespace onecard {
namespace {

TEST(Memory, OfTheHostIsAlignedAndZero) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100}}) {
    auto* const data = static_cast<unsigned char*>(allocate_memory(Memory::kHost, bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
    EXPECT_TRUE(std::all_of(data, data + bytes, [](unsigned char value) { return value == 0; }));
    free_memory(Memory::kHost, data);
  }
}

TEST(Memory, CopiesOfTheHostAreDoneOnReturn) {
  const char from[] = "rows";
  char queued[5], now[5];
  queue_copy({}, queued, from, 5);
  copy_now(Backend::kCpu, now, from, 5);
  EXPECT_STREQ(queued, from);
  EXPECT_STREQ(now, from);
}

// Without CUDA in the build there is no device; with it, none beyond those that there are.
TEST(CudaDevice, ThatIsNotThereIsRefused) {
  EXPECT_THROW(CudaDevice{num_cuda_devices()}, Error);
  EXPECT_THROW(CudaDevice{-1}, Error);
}

}  // namespace
}  // namespace onecard
