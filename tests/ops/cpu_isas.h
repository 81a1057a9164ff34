// The instruction sets that ops are tested on.
#pragma once

#include <vector>

#include "device/cpu/isa.h"

namespace onecard::test {

/// Plain, and AVX2 where this machine has it.
inline std::vector<cpu::Isa> cpu_isas() {
  std::vector<cpu::Isa> isas{cpu::Isa::kPlain};
  if (cpu::detect_isa() >= cpu::Isa::kAvx2) isas.push_back(cpu::Isa::kAvx2);
  return isas;
}

}  // namespace onecard::test
