// MUL1 with 6 bits a weight.
#include "ops/cuda/exl3_kernels_impl.cuh"

namespace onecard::ops::cuda {

template struct Exl3Kernels<6>;

}  // namespace onecard::ops::cuda
