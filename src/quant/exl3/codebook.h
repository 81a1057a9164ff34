// The three computed codebooks: what a 16-bit trellis state stands for.
#pragma once

#include <cstdint>

#include "quant/exl3/matrix.h"

namespace onecard::exl3 {

constexpr int kNumStates = 65536;

/// Markers stored beside a matrix (`mcg`, `mul1`, int32 scalars). Readers go by the tensor's
/// presence and never by its value.
constexpr uint32_t kMcgMultiplier = 0xCBAC1FED;
constexpr uint32_t kMul1Multiplier = 0x83DCD12D;

/// MUL1 without its last rounding: value = kMul1Scale * (sum of the product's four bytes) +
/// kMul1Offset.
constexpr double kMul1Scale = 0.00676727294921875;  // fp16 0x1EEE
constexpr double kMul1Offset = -3.453125;           // 1024 * kMul1Scale + fp16 0xC931

const char* codebook_name(Codebook codebook);  // "3inst", "mcg", "mul1"

/// The state's value as fp16 bits: exact, one rounding as the format defines it.
uint16_t codebook_f16(Codebook codebook, uint16_t state);

/// All values in f32, [kNumStates]; made on first use, then shared by every thread.
const float* codebook_table(Codebook codebook);

}  // namespace onecard::exl3
