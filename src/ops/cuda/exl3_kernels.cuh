// The kernels that multiply by EXL3 tiles, for one number of bits a weight (0: any, read at run
// time). One .cu file an instance, so that they compile side by side.
//
// A thread block is 8 warps, and a warp owns one strip (16 outputs) of a group of 128. Inputs are
// cut into slices of whole blocks of 128; a slice is summed on the tensor cores, slices are added
// in order in f32. The cut depends on the matrix's shape alone, so that a row's result depends
// neither on the other rows of the call nor on the kernel that computes it.
#pragma once

#include <cstdint>

#include "device/exec.h"
#include "ops/cuda/exl3_tile.cuh"

namespace onecard::ops::cuda {

constexpr int kExl3Threads = 256;
constexpr int kExl3Warps = kExl3Threads / 32;
constexpr int kMaxSliceBlocks = 8;
constexpr int kManyRows = 64;  // at a time, of the kernels for many rows
constexpr int kManyColumnTiles = column_tiles(kManyRows);

// ---- few rows: activations are rotated by the thread block that needs them

/// One product of a launch.
struct Exl3Job {
  Exl3Tiles w;
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int32_t in_blocks = 0;
  int32_t slice_blocks = 0;
  int32_t num_slices = 0;
  int32_t first_block = 0;    // of the grid
  int32_t first_counter = 0;  // one a group
  int64_t first_partial = 0;  // floats
};
constexpr int kMaxExl3Jobs = 12;
struct Exl3Jobs {
  Exl3Job job[kMaxExl3Jobs];
  int32_t num_jobs = 0;
  int32_t num_blocks = 0;
  int32_t num_rows = 0;
};

// ---- many rows: activations are rotated once, into fragments in global memory

/// Rows that one pass over an expert's tiles serves: slots [first, first + count).
struct ExpertItem {
  int32_t expert = 0;
  int32_t first = 0;
  int32_t count = 0;
};

/// The three matrices of one expert, as kernels see them.
struct ExpertTiles {
  Exl3Tiles gate, up, down;
};
enum class ExpertPart : int { kGate, kUp, kDown };

__host__ __device__ inline const Exl3Tiles& expert_part(const ExpertTiles& expert,
                                                        ExpertPart part) {
  return part == ExpertPart::kGate ? expert.gate
         : part == ExpertPart::kUp ? expert.up
                                   : expert.down;
}

/// Items and rows of a product with many rows. Either `items` and `experts` on the device, or one
/// matrix whose rows are cut into items of kManyRows.
struct Exl3Items {
  const ExpertItem* items = nullptr;
  const int32_t* num_items = nullptr;
  const ExpertTiles* experts = nullptr;
  ExpertPart part = ExpertPart::kGate;
  Exl3Tiles matrix;
  int64_t num_rows = 0;

  __device__ ExpertItem item(int64_t idx) const {
    if (items != nullptr) return idx < *num_items ? items[idx] : ExpertItem{};
    const int64_t first = idx * kManyRows, left = num_rows - first;
    return {0, int32_t(first), int32_t(left < 0 ? 0 : left < kManyRows ? left : kManyRows)};
  }
  __device__ Exl3Tiles tiles(const ExpertItem& item) const {
    return items != nullptr ? expert_part(experts[item.expert], part) : matrix;
  }
};

/// Arguments of the two kernels for routed experts with few rows each.
struct ExpertsFew {
  const ExpertItem* items = nullptr;
  const int32_t* num_items = nullptr;
  const ExpertTiles* experts = nullptr;
  const int32_t* slot_token = nullptr;   // [slots]
  const float* slot_weight = nullptr;    // [slots]
  const int32_t* choice_slot = nullptr;  // [tokens, experts_per_token]
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int32_t num_tokens = 0;
  int32_t experts_per_token = 0;
  int32_t hidden_blocks = 0;
  int32_t num_units = 0;
  int32_t hidden_slice_blocks = 0;
  int32_t unit_slice_blocks = 0;
  float swiglu_limit = 10;
  uint32_t* hidden = nullptr;      // [items][units] fragments of kFewColumnTiles column tiles
  float* gate_partials = nullptr;  // [slots][units][slices][gate, up][128]
  float* down_partials = nullptr;  // [slots][groups][slices][128]
  float* expert_out = nullptr;     // [slots][hidden]
  unsigned* counters = nullptr;    // [items][units], then [items][groups], then [groups]
  int32_t max_items = 0;
};

constexpr int kFewRows = 8;  // of an item
constexpr int kFewColumnTiles = column_tiles(kFewRows);

template <int kBits>
struct Exl3Kernels {
  /// out = x W for every job; num_rows <= 16.
  static void linear_few(const Exec& exec, const Exl3Jobs& jobs, float* partials,
                         unsigned* counters);
  /// z = x_h Wi: fragments [item][in_blocks][8][kManyColumnTiles][32], z: [slots, 128 * groups].
  static void multiply_many(const Exec& exec, const Exl3Items& items, int64_t max_items,
                            const uint2* fragments, int in_blocks, int slice_blocks, int groups,
                            float* z);
  /// Gate, up, SwiGLU and the rotation of down's inputs.
  static void experts_gate_up(const Exec& exec, const ExpertsFew& work);
  /// Down, and the sum over each token's experts.
  static void experts_down(const Exec& exec, const ExpertsFew& work);
  /// Wi as fp16 [128 * groups outputs][128 * in_blocks inputs].
  static void reconstruct(const Exec& exec, const Exl3Tiles& tiles, int in_blocks, int groups,
                          uint16_t* out);
};

}  // namespace onecard::ops::cuda
