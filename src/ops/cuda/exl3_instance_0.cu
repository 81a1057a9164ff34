// Any number of bits, any codebook, any layout.
#include "ops/cuda/exl3_kernels_impl.cuh"

namespace onecard::ops::cuda {

template struct Exl3Kernels<0>;

}  // namespace onecard::ops::cuda
