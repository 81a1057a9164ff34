// EXL3 tiles in registers: a lane's eight weights of a tile are the A operand of one
// mma.m16n8k16 whose rows are the tile's outputs and whose columns are its inputs, so that a tile
// goes from its packed words to the tensor cores without a shuffle and without shared memory. The B
// operand is rotated activations, eight columns of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/device.cuh"
#include "quant/exl3/matrix.h"

namespace onecard::ops::cuda {

/// A matrix as kernels see it, whatever its layout: 128 inputs x 16 outputs are a strip of 8 tiles,
/// 8 strips a group of 128 outputs.
struct Exl3Tiles {
  const std::byte* data = nullptr;
  int64_t block_stride = 0;  // bytes from 128 inputs to the next
  int64_t group_stride = 0;  // bytes from 128 outputs to the next
  int32_t strip_stride = 0;
  int32_t tile_stride = 0;
  int32_t bits = 0;
  exl3::Codebook codebook = exl3::Codebook::kMul1;
  const uint16_t* suh = nullptr;
  const uint16_t* svh = nullptr;

  __host__ __device__ const std::byte* strip(int64_t in_block, int64_t group, int idx) const {
    return data + in_block * block_stride + group * group_stride + int64_t(idx) * strip_stride;
  }
};

/// Host side; the view's pointers are device pointers.
inline Exl3Tiles exl3_tiles(const exl3::MatrixView& matrix) {
  const int64_t tile = exl3::tile_bytes(matrix.bits);
  Exl3Tiles tiles;
  tiles.data = matrix.data;
  tiles.bits = matrix.bits;
  tiles.codebook = matrix.codebook;
  tiles.suh = matrix.suh.data();
  tiles.svh = matrix.svh.data();
  switch (matrix.layout) {
    case exl3::Layout::kNative:
      tiles.tile_stride = int32_t(matrix.out_features / exl3::kTileDim * tile);
      tiles.strip_stride = int32_t(tile);
      tiles.group_stride = 8 * tile;
      tiles.block_stride = 8 * int64_t(tiles.tile_stride);
      break;
    case exl3::Layout::kBand:
      tiles.tile_stride = int32_t(tile);
      tiles.strip_stride = int32_t(8 * tile);
      tiles.group_stride = matrix.group_stride_bytes;
      tiles.block_stride = 64 * tile;
      break;
    case exl3::Layout::kKBlock:
      tiles.tile_stride = int32_t(tile);
      tiles.strip_stride = int32_t(8 * tile);
      tiles.group_stride = 64 * tile;
      tiles.block_stride = matrix.group_stride_bytes;
      break;
  }
  return tiles;
}

/// The kernel instance for a matrix: its bits where it is MUL1 with whole strips in one piece and
/// there is such an instance, else 0, which reads bits, codebook and strides at run time.
inline int exl3_instance(const Exl3Tiles& tiles) {
  const bool tuned = tiles.codebook == exl3::Codebook::kMul1 && tiles.bits >= 3 &&
                     tiles.bits <= 6 && tiles.tile_stride == exl3::tile_bytes(tiles.bits);
  return tuned ? tiles.bits : 0;
}

/// Where the bits of a lane's eight states lie: `shift` bits into word[0], then word[1], word[2].
/// Eight states take 16 + 7 * bits bits: two words up to 4 bits a weight, else three.
struct LaneWindow {
  int word[3];
  int shift;
};

__host__ __device__ constexpr LaneWindow lane_window(int bits, int lane) {
  const int num_words = 8 * bits;
  const int first_bit = (8 * bits * lane - (16 - bits) + 256 * bits) % (256 * bits);
  const int first = first_bit / 32;
  return {{first, (first + 1) % num_words, (first + 2) % num_words}, first_bit % 32};
}

template <int kBits>
constexpr int kWindowWords = kBits >= 1 && kBits <= 4 ? 2 : 3;

/// States j = 0..7 of a lane from its words.
__host__ __device__ inline uint32_t window_state(uint32_t high, uint32_t middle, uint32_t low,
                                                 int begin) {
  // Bits [begin, begin + 16) of high : middle : low.
  uint32_t bits = 0;
  if (begin <= 16)
    bits = high >> (16 - begin);
  else if (begin < 32)
    bits = high << (begin - 16) | middle >> (48 - begin);
  else if (begin <= 48)
    bits = middle >> (48 - begin);
  else
    bits = middle << (begin - 48) | low >> (80 - begin);
  return bits & 0xFFFFu;
}

template <int kBits>
__device__ __forceinline__ void lane_states(const uint32_t (&word)[kWindowWords<kBits>], int shift,
                                            int bits, uint32_t (&state)[8]) {
  const uint32_t third = kWindowWords<kBits> == 3 ? word[kWindowWords<kBits> - 1] : 0u;
  const uint32_t high = __funnelshift_l(word[1], word[0], unsigned(shift));
  const uint32_t middle = __funnelshift_l(third, word[1], unsigned(shift));
  const uint32_t low = third << shift;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    state[j] = window_state(high, middle, low, j * (kBits > 0 ? kBits : bits));
}

/// The codebook's fp16 values of two states, exact.
__device__ __forceinline__ uint32_t mul1_pair(uint32_t first, uint32_t second) {
  constexpr uint32_t kOnes = 0x01010101u, kThousand = 0x6400u;  // fp16 1024 + n is 0x6400 + n
  const uint32_t low = __dp4a(first * 0x83DCD12Du, kOnes, kThousand);
  const uint32_t high = __dp4a(second * 0x83DCD12Du, kOnes, kThousand);
  return fma_f16x2(__byte_perm(low, high, 0x5410), 0x1EEE1EEEu, 0xC931C931u);
}

__device__ __forceinline__ uint32_t codebook_pair(exl3::Codebook codebook, uint32_t first,
                                                  uint32_t second) {
  if (codebook == exl3::Codebook::kMul1) return mul1_pair(first, second);
  const bool mcg = codebook == exl3::Codebook::kMcg;
  const uint32_t factor = mcg ? 0xCBAC1FEDu : 89226354u, offset = mcg ? 0u : 64248484u;
  const uint32_t a = ((first * factor + offset) & 0x8FFF8FFFu) ^ 0x3B603B60u;
  const uint32_t b = ((second * factor + offset) & 0x8FFF8FFFu) ^ 0x3B603B60u;
  return add_f16x2(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
}

/// A lane's part of the eight tiles of a strip, as packed.
template <int kBits>
struct StripWords {
  uint32_t word[8][kWindowWords<kBits>];
};
/// Where the bits are not known the words are read when they are needed.
template <>
struct StripWords<0> {
  const std::byte* strip;
  int tile_stride;
};

template <int kBits>
__device__ __forceinline__ StripWords<kBits> load_strip(const std::byte* strip, int tile_stride,
                                                        const LaneWindow& window) {
  if constexpr (kBits == 0) {
    return {strip, tile_stride};
  } else {
    StripWords<kBits> words;
#pragma unroll
    for (int tile = 0; tile < 8; ++tile) {
      const auto* base = reinterpret_cast<const uint32_t*>(strip + tile * 32 * kBits);
#pragma unroll
      for (int w = 0; w < kWindowWords<kBits>; ++w)
        words.word[tile][w] = load_stream(base + window.word[w]);
    }
    return words;
  }
}

/// The A operand of a tile.
template <int kBits>
__device__ __forceinline__ void decode_tile(const StripWords<kBits>& words, int tile,
                                            const LaneWindow& window, int bits,
                                            exl3::Codebook codebook, uint32_t (&a)[4]) {
  uint32_t state[8];
  if constexpr (kBits > 0) {
    lane_states<kBits>(words.word[tile], window.shift, bits, state);
    a[0] = mul1_pair(state[0], state[1]);
    a[1] = mul1_pair(state[4], state[5]);
    a[2] = mul1_pair(state[2], state[3]);
    a[3] = mul1_pair(state[6], state[7]);
  } else {
    const auto* base = reinterpret_cast<const uint32_t*>(words.strip + tile * words.tile_stride);
    const uint32_t word[3] = {load_stream(base + window.word[0]),
                              load_stream(base + window.word[1]),
                              load_stream(base + window.word[2])};
    lane_states<kBits>(word, window.shift, bits, state);
    a[0] = codebook_pair(codebook, state[0], state[1]);
    a[1] = codebook_pair(codebook, state[4], state[5]);
    a[2] = codebook_pair(codebook, state[2], state[3]);
    a[3] = codebook_pair(codebook, state[6], state[7]);
  }
}

// Products of f32 that are added to something later go through __fmul_rn: the compiler may fuse
// them with the addition in one kernel and not in another, and all kernels give the same bits.

// ---- activations as B operands: [8 tiles][column tiles][32 lanes] of two registers a block of 128
// inputs; a column tile is the 8 columns of one mma. fp16 has 11 bits, so a value v is two columns:
// its nearest fp16 h, and what that leaves, 2048 (v - h), in the fp16 nearest to it; together 22
// bits. The first half of the columns are the rows' h, the second half their rests, in one order:
// up to four rows fit one mma, and their rests cost nothing.

constexpr int kFragmentWords = 8 * 32 * 2;  // 32-bit words of one column tile and block

/// Column tiles for so many rows, of those that kernels are made for.
__host__ __device__ constexpr int column_tiles(int num_rows) {
  return num_rows <= 4 ? 1 : num_rows <= 8 ? 2 : num_rows <= 16 ? 4 : 16;
}

/// Adds the products of tiles [kFirst, kEnd) of a strip: sums[column tile] are its 16 outputs x 8
/// columns as mma_16x8x16 holds them; `fragments` begin with tile kFirst.
template <int kBits, int kColumnTiles, int kFirst = 0, int kEnd = 8>
__device__ __forceinline__ void multiply_strip(const StripWords<kBits>& words,
                                               const LaneWindow& window, int bits,
                                               exl3::Codebook codebook, const uint2* fragments,
                                               int lane, float (&sums)[kColumnTiles][4]) {
#pragma unroll(kBits > 0 ? 8 : 1)
  for (int tile = kFirst; tile < kEnd; ++tile) {
    uint32_t a[4];
    decode_tile<kBits>(words, tile, window, bits, codebook, a);
#pragma unroll
    for (int columns = 0; columns < kColumnTiles; ++columns) {
      const uint2 b = fragments[((tile - kFirst) * kColumnTiles + columns) * 32 + lane];
      mma_16x8x16(sums[columns], a, b.x, b.y);
    }
  }
}

/// The 128-point transform over a warp: lane l holds elements 4l .. 4l+3. Scaled by 1/sqrt(128).
__device__ __forceinline__ void hadamard_128(float (&v)[4], int lane) {
  const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
  v[0] = a + c;
  v[1] = b + d;
  v[2] = a - c;
  v[3] = b - d;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float other = __shfl_xor_sync(~0u, v[i], distance);
      v[i] = (lane & distance) != 0 ? other - v[i] : v[i] + other;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = __fmul_rn(v[i], 0.08838834764831845f);
}

/// Elements 4 * lane .. + 3 of a row of 128.
__device__ __forceinline__ void load_4(const float* row, int lane, float (&v)[4]) {
  if ((reinterpret_cast<uintptr_t>(row) & 15) == 0) {
    const float4 all = *reinterpret_cast<const float4*>(row + 4 * lane);
    v[0] = all.x;
    v[1] = all.y;
    v[2] = all.z;
    v[3] = all.w;
  } else {
    for (int i = 0; i < 4; ++i) v[i] = row[4 * lane + i];
  }
}

/// The same of a row that other thread blocks wrote: read behind the first-level cache.
__device__ __forceinline__ void load_4_shared_by_blocks(const float* row, int lane, float (&v)[4]) {
  const float4 all = __ldcg(reinterpret_cast<const float4*>(row + 4 * lane));
  v[0] = all.x;
  v[1] = all.y;
  v[2] = all.z;
  v[3] = all.w;
}

__device__ __forceinline__ void store_4(float* row, int lane, const float (&v)[4]) {
  if ((reinterpret_cast<uintptr_t>(row) & 15) == 0)
    *reinterpret_cast<float4*>(row + 4 * lane) = make_float4(v[0], v[1], v[2], v[3]);
  else
    for (int i = 0; i < 4; ++i) row[4 * lane + i] = v[i];
}

/// Four fp16 scales as f32.
__device__ __forceinline__ void load_scales(const uint16_t* scales, int lane, float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = f16_to_f32(scales[4 * lane + i]);
}

/// Two neighbours of a column, and what fp16 leaves of them.
struct SplitPair {
  uint32_t value, rest;
};
__device__ __forceinline__ SplitPair split_pair(float low, float high) {
  const uint32_t value = pack_f16x2(low, high);
  return {value, pack_f16x2((low - f16_to_f32(uint16_t(value))) * 2048.0f,
                            (high - f16_to_f32(uint16_t(value >> 16))) * 2048.0f)};
}

/// Writes a rotated row of 128, held as hadamard_128 leaves it, as row `row` of a block's
/// fragments: columns `row` and `row` + half of all columns.
__device__ __forceinline__ void store_fragment_row(uint32_t* fragments, int num_column_tiles,
                                                   int row, int lane, const float (&v)[4]) {
  const int tile = lane / 4, quarter = lane % 4;  // inputs 4 * quarter .. + 3 of the tile
  const SplitPair first = split_pair(v[0], v[1]), second = split_pair(v[2], v[3]);
  const auto store = [&](int column, uint32_t a, uint32_t b) {
    uint32_t* const base = fragments +
                           ((tile * num_column_tiles + column / 8) * 32 + column % 8 * 4) * 2 +
                           quarter / 2;
    base[2 * (2 * (quarter & 1))] = a;
    base[2 * (2 * (quarter & 1) + 1)] = b;
  };
  store(row, first.value, second.value);
  store(row + 4 * num_column_tiles, first.rest, second.rest);
}

/// x * suh, rotated, as row `row` of a block's fragments. A whole warp; x, suh: [128].
__device__ __forceinline__ void prepare_row(const float* x, const uint16_t* suh, int lane,
                                            uint32_t* fragments, int num_column_tiles, int row) {
  float v[4], scale[4];
  load_4(x, lane, v);
  load_scales(suh, lane, scale);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = __fmul_rn(v[i], scale[i]);
  hadamard_128(v, lane);
  store_fragment_row(fragments, num_column_tiles, row, lane, v);
}

/// One warp's sums of a strip, values and rests joined: visit(row, output of the strip, sum) for
/// the lane's part of the rows.
template <int kColumnTiles, typename Visit>
__device__ __forceinline__ void visit_sums(const float (&sums)[kColumnTiles][4], int lane,
                                           const Visit& visit) {
  constexpr int kValueTiles = (kColumnTiles + 1) / 2;
#pragma unroll
  for (int tile = 0; tile < kValueTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float rest = 0;
      if constexpr (kColumnTiles == 1)
        rest = __shfl_xor_sync(~0u, sums[0][i], 2);  // of the column 4 further
      else
        rest = sums[kValueTiles + tile][i];
      const int row = 8 * tile + 2 * (lane % 4) + i % 2;
      if (row < 4 * kColumnTiles)
        visit(row, lane / 4 + 8 * (i / 2), sums[tile][i] + rest * (1.0f / 2048));
    }
  }
}

/// The same to rows of 128 outputs: rows[r * row_stride + 16 * strip + output].
template <int kColumnTiles>
__device__ __forceinline__ void store_sums(const float (&sums)[kColumnTiles][4], int num_rows,
                                           int strip, int lane, float* rows, int64_t row_stride) {
  visit_sums<kColumnTiles>(sums, lane, [&](int row, int output, float sum) {
    if (row < num_rows) rows[row * row_stride + 16 * strip + output] = sum;
  });
}

/// Sum of `num_slices` partial rows, first to last: the order is part of the result.
__device__ __forceinline__ void sum_slices(const float* partial, int num_slices, int64_t stride,
                                           int lane, float (&v)[4]) {
  constexpr int kAhead = 8;  // loads under way
  load_4_shared_by_blocks(partial, lane, v);
  for (int begin = 1; begin < num_slices; begin += kAhead) {
    float next[kAhead][4];
#pragma unroll
    for (int s = 0; s < kAhead; ++s)
      if (begin + s < num_slices)
        load_4_shared_by_blocks(partial + (begin + s) * stride, lane, next[s]);
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      if (begin + s >= num_slices) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] += next[s][i];
    }
  }
}

/// Rotated back and scaled: the last step of a product.
__device__ __forceinline__ void finish_row(float (&v)[4], const uint16_t* svh, int lane) {
  float scale[4];
  hadamard_128(v, lane);
  load_scales(svh, lane, scale);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = __fmul_rn(v[i], scale[i]);
}

/// weight * silu(min(gate, limit)) * clamp(up, -limit, limit)
__device__ __forceinline__ float swiglu_value(float gate, float up, float limit, float weight) {
  const float a = fminf(gate, limit);
  const float b = fmaxf(fminf(up, limit), -limit);
  return weight * (a / (1.0f + expf(-a))) * b;
}

/// True in every thread of the last of `expected` thread blocks that call it with this counter,
/// which then sees what the others wrote to global memory before; the counter is zero again.
__device__ __forceinline__ bool last_to_arrive(unsigned* counter, unsigned expected) {
  __threadfence();
  int last = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1u) == expected - 1;
    if (last != 0) *counter = 0;
  }
  last = __syncthreads_or(last);
  if (last != 0) __threadfence();
  return last != 0;
}

}  // namespace onecard::ops::cuda
