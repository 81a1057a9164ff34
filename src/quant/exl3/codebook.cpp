#include "quant/exl3/codebook.h"

#include <memory>
#include <vector>

#include "tensor/dtype.h"

namespace onecard::exl3 {
namespace {

// Both halves of the masked product are small fp16 numbers; their sum is rounded once. f32 holds
// the sum of two fp16 of such near exponents exactly.
uint16_t sum_of_halves(uint32_t product) {
  const uint32_t halves = (product & 0x8FFF8FFFu) ^ 0x3B603B60u;
  return f32_to_f16(f16_to_f32(uint16_t(halves & 0xFFFF)) + f16_to_f32(uint16_t(halves >> 16)));
}

std::vector<float> make_table(Codebook codebook) {
  std::vector<float> table(kNumStates);
  for (int state = 0; state < kNumStates; ++state)
    table[size_t(state)] = f16_to_f32(codebook_f16(codebook, uint16_t(state)));
  return table;
}

}  // namespace

const char* codebook_name(Codebook codebook) {
  switch (codebook) {
    case Codebook::k3Inst:
      return "3inst";
    case Codebook::kMcg:
      return "mcg";
    case Codebook::kMul1:
      return "mul1";
  }
  return "unknown";
}

uint16_t codebook_f16(Codebook codebook, uint16_t state) {
  switch (codebook) {
    case Codebook::k3Inst:
      return sum_of_halves(state * 89226354u + 64248484u);
    case Codebook::kMcg:
      return sum_of_halves(state * kMcgMultiplier);
    case Codebook::kMul1: {
      const uint32_t p = state * kMul1Multiplier;
      const uint32_t sum = (p & 0xFF) + (p >> 8 & 0xFF) + (p >> 16 & 0xFF) + (p >> 24);
      // The product has 22 significant bits: exact in f32, and so is the sum.
      return f32_to_f16(float(kMul1Scale) * float(sum) + float(kMul1Offset));
    }
  }
  return 0;
}

const float* codebook_table(Codebook codebook) {
  static const std::vector<float> k3inst = make_table(Codebook::k3Inst);
  static const std::vector<float> mcg = make_table(Codebook::kMcg);
  static const std::vector<float> mul1 = make_table(Codebook::kMul1);
  switch (codebook) {
    case Codebook::k3Inst:
      return k3inst.data();
    case Codebook::kMcg:
      return mcg.data();
    case Codebook::kMul1:
      return mul1.data();
  }
  return nullptr;
}

}  // namespace onecard::exl3
