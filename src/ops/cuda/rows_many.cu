#include "ops/cuda/rows_many.cuh"

namespace onecard::ops::cuda {
namespace {

// One warp a row and block of 128 inputs.
__global__ __launch_bounds__(256) void prepare_items_kernel(Exl3Items items, View<const float> x,
                                                            const int32_t* slot_token,
                                                            int in_blocks, uint32_t* fragments) {
  const ExpertItem item = items.item(blockIdx.y);
  const int lane = int(threadIdx.x) % 32, row = int(blockIdx.x) / in_blocks * 8 + threadIdx.x / 32;
  if (row >= item.count) return;
  const int block = int(blockIdx.x) % in_blocks;
  const Exl3Tiles w = items.tiles(item);
  const int64_t source = slot_token != nullptr ? slot_token[item.first + row] : item.first + row;
  prepare_row(
      x.row(source) + int64_t(block) * 128, w.suh + int64_t(block) * 128, lane,
      fragments + (int64_t(blockIdx.y) * in_blocks + block) * kManyColumnTiles * kFragmentWords,
      kManyColumnTiles, row);
}

}  // namespace

void prepare_items(const Exec& exec, const Exl3Items& items, int64_t max_items, View<const float> x,
                   const int32_t* slot_token, int in_blocks, uint2* fragments) {
  launch(exec, dim3(unsigned(kManyRows / 8 * in_blocks), unsigned(max_items)), dim3(256), 0,
         prepare_items_kernel, items, x, slot_token, in_blocks,
         reinterpret_cast<uint32_t*>(fragments));
}

}  // namespace onecard::ops::cuda
