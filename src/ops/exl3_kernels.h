// CPU kernels that multiply by EXL3 matrices without ever storing the decoded weights.
//
// The unit of work is a strip: 128 inputs x 16 outputs, 8 tiles. A kernel keeps a strip's sums in
// registers and touches memory once per strip and row:
//   sums[r, 16] += scale[r] * (x_q[r, 128] . W_q[128, 16])
// where x_q are the row's activations of that block, already rotated and quantised, and W_q the
// codebook's integers (MUL1: the byte sum of the product, 0..1020) or its exact values (kF32).
// Integer dots are exact and every kernel adds them in the same order, so all kernels of one
// precision give the same bits, whatever the number of rows in a call.
//
// Round a matrix: prepare (x * suh, Hadamard, quantise) -> multiply -> finish (Hadamard, * svh).
// All functions here are called from any thread; they allocate nothing and share no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "device/cpu/isa.h"
#include "quant/exl3/matrix.h"

namespace onecard::ops {

enum class Exl3Precision : uint8_t {
  kInt16,  // activations in 15 bits, one scale a row and block of 128; MUL1 only. The default
  kInt8,   // 8 bits: opt-in; MUL1 only
  kF32,    // activations as they are, codebook values exact: every codebook
};

const char* exl3_precision_name(Exl3Precision precision);  // "int16", "int8", "exact"
std::optional<Exl3Precision> exl3_precision_from_name(std::string_view name);

/// Strips that share their inputs: consecutive tiles of outputs, one block of 128 inputs.
struct Exl3Strips {
  const std::byte* tiles = nullptr;
  int64_t tile_stride_bytes = 0;   // from one input tile to the next
  int64_t strip_stride_bytes = 0;  // from one output tile to the next
  int num_strips = 0;
  int prefetch_bytes = 0;  // how far ahead of a strip to fetch, where strips are contiguous; 0: not

  int rows = 0;                            // 1..kernel.max_rows
  const std::byte* activations = nullptr;  // [rows][kernel.activation_bytes], 64-byte aligned
  const float* scales = nullptr;           // [rows]

  float* sums = nullptr;  // [rows][sums_stride], 16 * num_strips used; added to
  int64_t sums_stride = 0;
};

/// How a kernel wants the 128 activations of one row and block.
enum class Exl3Activations : uint8_t {
  kNatural16,   // int16, in order                                                         256 B
  kDoubled16,   // int16 [8 in-tiles][j][row group], each twice: dword lanes               512 B
  kGrouped16,   // int16 [8 in-tiles][row group][j]                                        256 B
  kGrouped8,    // int8  [8 in-tiles][row group][j], each twice                            256 B
  kNaturalF32,  // f32, in order                                                          512 B
  kStreamF32    // f32, each in-tile's rows as the stream has them: 0 1 8 9 2 3 10 11 4 ..   512 B
};
// Row group g = 0..3 and j = 0..3 stand for row 2g + (j & 1) + 8 (j >> 1) of an input tile.

struct Exl3Kernel {
  const char* name;
  onecard::cpu::Isa isa;
  Exl3Precision precision;
  exl3::Codebook codebook;
  int bits;
  int max_rows;  // of one call
  Exl3Activations activations;
  int64_t activation_bytes;  // of one row and block
  int activation_limit;      // largest magnitude of a quantised one; 0: not quantised
  void (*multiply)(const Exl3Strips& strips);
};

constexpr int kExl3Int16Limit = 16383;  // 128 * 1020 * 16383 still fits an int32 sum
constexpr int kExl3Int8Limit = 127;
constexpr int64_t kExl3MaxActivationBytes = 512;  // of a row and block, any kernel
constexpr float kExl3SmallestStep = 1e-30f;       // a block with no larger magnitude counts as zero
constexpr float kExl3OffsetGain = -3.453125f / 0.00676727294921875f;  // CAFF / kinv: -510.268

/// No row count of a call is larger.
constexpr int kExl3MaxRows = 256;

/// Every kernel that `isa` may run, narrowest instruction set first, preferred ones last.
std::span<const Exl3Kernel* const> exl3_kernels(onecard::cpu::Isa isa);

/// The steps before and after a product, for one row and one block of 128; one set per ISA.
struct Exl3Steps {
  /// x_q = quantise(H(x * suh)). Writes the kernel's activation block, its scale, and the offset
  /// that the sums of this block start from: scale * sum(x_q) * CAFF / kinv, which turns byte sums
  /// into centred codebook values (0 for kF32). x: [128]; suh: [128] fp16 bits.
  void (*prepare)(const Exl3Kernel& kernel, const float* x, const uint16_t* suh,
                  std::byte* activations, float* scale, float* offset);
  /// y = gain * H(sums) * svh. sums, y: [128], y may be sums; svh: [128] fp16 bits.
  void (*finish)(const float* sums, float gain, const uint16_t* svh, float* y);
  /// h = weight * silu(min(gate, limit)) * clamp(up, -limit, limit). All [128]; h may be gate.
  void (*swiglu)(const float* gate, const float* up, float limit, float weight, float* h);
  /// sum[i] = a[i] + b[i], for n a multiple of 16; sum may be a or b.
  void (*add)(const float* a, const float* b, int64_t n, float* sum);
};

const Exl3Steps& exl3_steps(onecard::cpu::Isa isa);

/// What finish() multiplies by: kinv for the integer precisions, 1 for kF32.
float exl3_gain(Exl3Precision precision);

class Exl3KernelSet;

/// The kernels to use on this machine: of those that take a row count, the one that a timing of a
/// few milliseconds found fastest. Made at the first call for its arguments, then shared; safe from
/// any thread. Which kernel wins changes no result.
const Exl3KernelSet& exl3_fastest(onecard::cpu::Isa isa, Exl3Precision precision,
                                  exl3::Codebook codebook, int bits);

/// The kernels for one kind of matrix, by the number of rows of a call.
class Exl3KernelSet {
 public:
  /// The preferred kernels of `isa`. kInt16 and kInt8 fall back to kF32 where the codebook is not
  /// MUL1, kInt8 to kInt16 where no int8 kernel fits. Throws kInvalidArgument for bits
  /// outside 1..8.
  Exl3KernelSet(onecard::cpu::Isa isa, Exl3Precision precision, exl3::Codebook codebook, int bits);

  /// For 1 <= rows <= kExl3MaxRows.
  const Exl3Kernel& for_rows(int64_t rows) const {
    return *by_rows_[rows <= kSmallRows ? size_t(rows - 1) : size_t(kSmallRows)];
  }
  /// Takes `kernel` for calls of `rows` rows, 1..9 (9: for every larger number too). Its precision,
  /// codebook and bits are the set's.
  void use(int rows, const Exl3Kernel& kernel);

  static constexpr int kSmallRows = 8;  // row counts that have a kernel of their own

 private:
  const Exl3Kernel* by_rows_[kSmallRows + 1] = {};
};

}  // namespace onecard::ops
