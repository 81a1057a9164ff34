// Which arithmetic a model's EXL3 weights may be multiplied with on the CPU. The faster ones round
// activations; what that does to predictions depends on the model (a small error can tip a choice
// of experts or of rows), so it is measured for each, once, and kept beside the weights:
// DIRECTORY/precision.json, written by `onecard precision`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "ops/exl3_kernels.h"

namespace onecard::model {

struct Arithmetic {
  bool dense_int16 = false;                   // Exec::dense_int16
  std::optional<ops::Exl3Precision> experts;  // nothing: what fits their size (CpuExperts)

  bool operator==(const Arithmetic&) const = default;
};

/// Divergence of the predictions from those of the plain path, in nats: of every position of a
/// prompt, then of every step of a continuation.
struct PrecisionMeasure {
  Arithmetic arithmetic;
  int64_t prompt_tokens = 0;
  int64_t decoded_tokens = 0;
  double prompt_kl = 0;   // mean
  double decoded_kl = 0;  // mean
  double largest_kl = 0;

  static constexpr double kMaxMeanKl = 1e-4;
  static constexpr int64_t kMinPromptTokens = 4096, kMinDecodedTokens = 256;
  bool passes() const;
};

/// The faster arithmetics that a model may be measured with, the fastest first.
std::span<const Arithmetic> measured_arithmetics();

struct PrecisionRecord {
  std::string weights;  // fingerprint
  std::vector<PrecisionMeasure> measures;
};

/// Says which weights these are: sizes, headers and samples of every file.
std::string weights_fingerprint(const io::Checkpoint& checkpoint);

void write_precision_record(const std::string& directory, const PrecisionRecord& record);
/// Nothing without a file, or when its weights are not those of `checkpoint`. Throws kDataCorrupt.
std::optional<PrecisionRecord> read_precision_record(const io::Checkpoint& checkpoint);

/// What to run with. Nothing asked: the fastest of the measures that pass, but for int8; without
/// one the exact dense products and Arithmetic's default for experts. kF32: exact in all. kInt16:
/// experts so, dense matrices too where that passes. kInt8: as kInt16, but throws kInvalidArgument
/// unless a measure of int8 passes.
Arithmetic choose_arithmetic(const std::optional<PrecisionRecord>& record,
                             std::optional<ops::Exl3Precision> asked);

}  // namespace onecard::model
