// MUL1 with 5 bits a weight.
#include "ops/cuda/exl3_kernels_impl.cuh"

namespace onecard::ops::cuda {

template struct Exl3Kernels<5>;

}  // namespace onecard::ops::cuda
