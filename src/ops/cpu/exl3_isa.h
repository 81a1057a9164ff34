// The kernel tables of each ISA. A table is constant data: reading it runs no code of that ISA.
// Included by the exl3 sources of this folder alone; no inline code here, so that nothing compiled
// for a wide ISA can be picked by the linker for baseline callers.
#pragma once

#include <cstddef>

#include "ops/exl3_kernels.h"

namespace onecard::ops::cpu_exl3 {

struct KernelTable {
  const Exl3Kernel* kernels;
  size_t size;
};

extern const KernelTable kPlainKernels;
extern const KernelTable kAvx2PanelKernels;
extern const KernelTable kAvx512PanelKernels;
extern const KernelTable kAvx2DirectKernels;
extern const KernelTable kVnniKernels;
extern const KernelTable kVbmiKernels;

extern const Exl3Steps kPlainSteps;
extern const Exl3Steps kAvx2Steps;

}  // namespace onecard::ops::cpu_exl3
