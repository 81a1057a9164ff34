// What the emulator has to notice, so that a green test of a kernel means something.
#ifdef ONECARD_CUDA_EMULATED
#include <gtest/gtest.h>

#include <numeric>

#include "ops/cuda/block_sum.cuh"
#include "ops/cuda/device.cuh"

namespace onecard::ops::cuda {
namespace {

using cuda_emulator::Order;

// Every thread hands its number to the next one through shared memory.
template <bool kWithBarrier>
void pass_on_kernel(int* out) {
  static int shared[64];
  shared[threadIdx.x] = int(threadIdx.x);
  if (kWithBarrier) __syncthreads();
  out[threadIdx.x] = shared[(threadIdx.x + 1) % 64];
  __syncthreads();
  shared[threadIdx.x] = -1;
}

template <bool kWithBarrier>
std::vector<int> passed_on(Order order) {
  std::vector<int> out(64);
  cuda_emulator::set_order(order);
  launch(Exec{}, dim3(1), dim3(64), 0, pass_on_kernel<kWithBarrier>, out.data());
  return out;
}

TEST(CudaEmulator, AMissingBarrierShowsInAnotherOrder) {
  EXPECT_EQ(passed_on<true>(Order::kAscending), passed_on<true>(Order::kDescending));
  EXPECT_NE(passed_on<false>(Order::kAscending), passed_on<false>(Order::kDescending));
}

// Lane 0 of the second warp waits at the block's barrier, its warp for it at the shuffle.
void lopsided_kernel() {
  if (threadIdx.x <= 32)
    __syncthreads();
  else
    __shfl_sync(~0u, 1, 0);
}

TEST(CudaEmulatorDeathTest, ABarrierThatNotAllReachEndsTheRun) {
  EXPECT_DEATH(launch(Exec{}, dim3(1), dim3(64), 0, lopsided_kernel), "wait for each other");
}

void unwaited_copy_kernel(const int* from) {
  alignas(16) static int to[4];
  async_copy_16(to, from);
  async_commit();
}

TEST(CudaEmulatorDeathTest, ACopyThatNobodyWaitsForEndsTheRun) {
  alignas(16) static const int from[4] = {};
  EXPECT_DEATH(launch(Exec{}, dim3(1), dim3(1), 0, unwaited_copy_kernel, from),
               "nobody waited for");
}

void scan_kernel(const int* values, int* out, int* total) {
  int sum = 0;
  out[threadIdx.x] = block_scan<128>(values[threadIdx.x], sum);
  if (threadIdx.x == 127) *total = sum;
}

TEST(CudaEmulator, BlockScanSumsTheThreadsBefore) {
  std::vector<int> values(128), want(128), got(128);
  for (int i = 0; i < 128; ++i) values[size_t(i)] = i * 7 % 11;
  std::exclusive_scan(values.begin(), values.end(), want.begin(), 0);
  for (const Order order : {Order::kAscending, Order::kDescending, Order::kShuffled}) {
    int total = 0;
    cuda_emulator::set_order(order);
    launch(Exec{}, dim3(1), dim3(128), 0, scan_kernel, values.data(), got.data(), &total);
    EXPECT_EQ(got, want);
    EXPECT_EQ(total, want.back() + values.back());
  }
}

}  // namespace
}  // namespace onecard::ops::cuda
#endif
