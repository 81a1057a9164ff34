// How one matrix lies in a checkpoint. A module is recognised by the tensors it has, never by its
// name or by what the configuration says about quantisation:
//   trellis, suh|su, svh|sv [, mul1|mcg]     EXL3; bits and codebook are read from the tensors
//   weight (F8_E4M3), scale                  FP8, one scale per 32 x 32
//   weight (I8 or U8, two values a byte), scale    FP4, one scale per 32 inputs of a row
//   weight (F32, F16, BF16)                  plain
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "quant/exl3/matrix.h"

namespace onecard::model {

enum class WeightFormat { kPlain, kFp8, kFp4, kExl3 };
const char* weight_format_name(WeightFormat format);  // "plain", "fp8", "fp4", "exl3"

/// Borrows from the checkpoint.
struct StoredLinear {
  WeightFormat format = WeightFormat::kPlain;
  int64_t out_features = 0;
  int64_t in_features = 0;
  const io::StoredTensor* weight = nullptr;     // all but kExl3
  const io::StoredTensor* scale = nullptr;      // kFp8, kFp4
  const io::StoredTensor* trellis = nullptr;    // kExl3, from here on
  const io::StoredTensor* in_scale = nullptr;   // suh [in] F16, or su [in/16] I16: packed signs
  const io::StoredTensor* out_scale = nullptr;  // svh [out] F16, or sv [out/16] I16
  bool in_signs_only = false;                   // in_scale is su
  bool out_signs_only = false;                  // out_scale is sv
  const io::StoredTensor* marker = nullptr;     // mul1 or mcg, where there is one
  int bits = 0;                                 // K, 1..8
  exl3::Codebook codebook = exl3::Codebook::k3Inst;
};

/// The matrix W[out_features, in_features] called `module`; nothing when the checkpoint has neither
/// `module`.trellis nor `module`.weight. Throws kDataCorrupt naming file, tensor, expected and
/// found when a tensor is missing or of another shape or dtype, kUnsupported for what EXL3 files
/// may hold and this program does not read (half-integer bits, dimensions that are no multiples of
/// 128).
std::optional<StoredLinear> find_linear(const io::Checkpoint& checkpoint, const std::string& module,
                                        int64_t out_features, int64_t in_features);

/// A block-diagonal module: num_groups matrices [out_features, in_features]. One result when they
/// lie one behind the other in `module`, num_groups when each is a module `module`.slice.N of its
/// own, none when the checkpoint has neither. Throws what find_linear throws, and kDataCorrupt when
/// a slice is missing.
std::vector<StoredLinear> find_grouped_linear(const io::Checkpoint& checkpoint,
                                              const std::string& module, int64_t num_groups,
                                              int64_t out_features, int64_t in_features);

}  // namespace onecard::model
