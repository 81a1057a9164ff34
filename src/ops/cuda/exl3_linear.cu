#include <algorithm>

#include "ops/cuda/exl3_kernels.cuh"
#include "ops/cuda/exl3_linear.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/rows_many.cuh"
#include "ops/cuda/scratch.cuh"

namespace onecard::ops::cuda {
namespace {

constexpr int64_t kFewRowsLimit = 16;  // up to here a thread block rotates what it needs itself

/// out[row] = finished z[row]: one warp a row and group.
__global__ void finish_rows_kernel(const float* z, int64_t columns, const uint16_t* svh,
                                   View<float> out) {
  const int lane = int(threadIdx.x) % 32;
  const int64_t group = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (group * 128 >= columns) return;
  const int64_t row = blockIdx.y;
  float v[4];
  load_4(z + row * columns + group * 128, lane, v);
  finish_row(v, svh + group * 128, lane);
  store_4(out.row(row) + group * 128, lane, v);
}

/// Those of `calls` from `begin` on that can share a launch with the first of them: same instance.
Exl3Jobs gather_jobs(std::span<const LinearCall> calls, std::span<bool> done, size_t begin,
                     int64_t& num_counters, int64_t& num_partials) {
  Exl3Jobs jobs;
  jobs.num_rows = int32_t(calls[begin].x.rows);
  const int instance = exl3_instance(exl3_tiles(calls[begin].w->exl3));
  num_counters = num_partials = 0;
  for (size_t i = begin; i < calls.size() && jobs.num_jobs < kMaxExl3Jobs; ++i) {
    const Exl3Tiles tiles = exl3_tiles(calls[i].w->exl3);
    if (done[i] || exl3_instance(tiles) != instance) continue;
    const int64_t in_blocks = calls[i].w->in_features / 128;
    const int64_t groups = calls[i].w->out_features / 128;
    Exl3Job& job = jobs.job[jobs.num_jobs++];
    job.w = tiles;
    job.x = calls[i].x.data;
    job.x_stride = calls[i].x.stride;
    job.out = calls[i].out.data;
    job.out_stride = calls[i].out.stride;
    job.in_blocks = int32_t(in_blocks);
    job.slice_blocks = exl3_slice_blocks(in_blocks, groups);
    job.num_slices = (job.in_blocks + job.slice_blocks - 1) / job.slice_blocks;
    job.first_block = jobs.num_blocks;
    job.first_counter = int32_t(num_counters);
    job.first_partial = num_partials;
    jobs.num_blocks += job.num_slices * int32_t(groups);
    num_counters += groups;
    num_partials += groups * jobs.num_rows * job.num_slices * 128;
    done[i] = true;
  }
  return jobs;
}

void few_rows(const Exec& exec, std::span<const LinearCall> calls) {
  constexpr size_t kMaxCalls = 64;
  require(calls.size() <= kMaxCalls, ErrorCode::kInvalidArgument,
          "linear_each: more than 64 products in a call");
  bool done[kMaxCalls] = {};
  for (size_t i = 0; i < calls.size(); ++i) {
    if (done[i]) continue;
    int64_t num_counters = 0, num_partials = 0;
    const Exl3Jobs jobs = gather_jobs(calls, done, i, num_counters, num_partials);
    ScratchCutter scratch(exec);
    unsigned* const counters = scratch.counters(num_counters, "exl3 linear");
    float* const partials = scratch.take<float>(num_partials, "exl3 linear");
    with_exl3_instance(exl3_instance(jobs.job[0].w), [&](auto bits) {
      Exl3Kernels<bits()>::linear_few(exec, jobs, partials, counters);
    });
  }
}

void many_rows(const Exec& exec, const LinearCall& call) {
  const LinearWeight& w = *call.w;
  const int64_t in_blocks = w.in_features / 128, groups = w.out_features / 128;
  // As many rows at a time as the scratch memory holds.
  ScratchCutter all(exec);
  const int64_t item_bytes = kManyRows * 4 * (w.in_features + w.out_features);
  const int64_t max_items = std::clamp<int64_t>((all.left_bytes() - 1024) / item_bytes, 1, 65535);
  const Exl3Tiles tiles = exl3_tiles(w.exl3);
  for (int64_t begin = 0; begin < call.x.rows; begin += max_items * kManyRows) {
    const int64_t rows = std::min(call.x.rows - begin, max_items * kManyRows);
    const int64_t num_items = (rows + kManyRows - 1) / kManyRows;
    ScratchCutter scratch(exec);
    auto* const fragments = scratch.take<uint2>(
        num_items * in_blocks * kManyColumnTiles * kFragmentWords / 2, "exl3 linear");
    auto* const z = scratch.take<float>(rows * w.out_features, "exl3 linear");
    Exl3Items items;
    items.matrix = tiles;
    items.num_rows = rows;
    prepare_items(exec, items, num_items, call.x.rows_between(begin, begin + rows), nullptr,
                  int(in_blocks), fragments);
    with_exl3_instance(exl3_instance(tiles), [&](auto bits) {
      Exl3Kernels<bits()>::multiply_many(exec, items, num_items, fragments, int(in_blocks),
                                         exl3_slice_blocks(in_blocks, groups), int(groups), z);
    });
    const View<float> out = call.out.rows_between(begin, begin + rows);
    for (int64_t first = 0; first < rows; first += 65535) {
      const int64_t count = std::min<int64_t>(rows - first, 65535);
      launch(exec, dim3(unsigned((groups + 7) / 8), unsigned(count)), dim3(256), 0,
             finish_rows_kernel, z + first * w.out_features, w.out_features, tiles.svh,
             out.rows_between(first, first + count));
    }
  }
}

}  // namespace

int exl3_slice_blocks(int64_t in_blocks, int64_t out_groups) {
  // About 400 thread blocks or more: three on every multiprocessor of the largest GPU.
  const int64_t wanted = std::clamp<int64_t>(in_blocks * out_groups / 360, 1, kMaxSliceBlocks);
  const int64_t num_slices = (in_blocks + wanted - 1) / wanted;
  return int((in_blocks + num_slices - 1) / num_slices);
}

void exl3_linear(const Exec& exec, std::span<const LinearCall> calls) {
  if (calls[0].x.rows <= kFewRowsLimit) return few_rows(exec, calls);
  for (const LinearCall& call : calls) many_rows(exec, call);
}

void exl3_reconstruct_inner(const Exec& exec, const exl3::MatrixView& matrix, uint16_t* out) {
  const Exl3Tiles tiles = exl3_tiles(matrix);
  with_exl3_instance(exl3_instance(tiles), [&](auto bits) {
    Exl3Kernels<bits()>::reconstruct(exec, tiles, int(matrix.in_features / 128),
                                     int(matrix.out_features / 128), out);
  });
}

}  // namespace onecard::ops::cuda
