// MUL1 with 3 bits a weight.
#include "ops/cuda/exl3_kernels_impl.cuh"

namespace onecard::ops::cuda {

template struct Exl3Kernels<3>;

}  // namespace onecard::ops::cuda
