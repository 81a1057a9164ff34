// What products with many rows share, dense or by expert.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/cuda/exl3_kernels.cuh"
#include "tensor/view.h"

namespace onecard::ops::cuda {

/// fragments [item][in_blocks][8][kManyColumnTiles][32] of the items' rows of x; row s of an item
/// is x row slot_token[first + s], or first + s where slot_token is null.
void prepare_items(const Exec& exec, const Exl3Items& items, int64_t max_items, View<const float> x,
                   const int32_t* slot_token, int in_blocks, uint2* fragments);

/// visit(std::integral_constant<int, bits>) of the instance to use.
template <typename Visit>
void with_exl3_instance(int instance, const Visit& visit) {
  switch (instance) {
    case 3:
      return visit(std::integral_constant<int, 3>());
    case 4:
      return visit(std::integral_constant<int, 4>());
    case 5:
      return visit(std::integral_constant<int, 5>());
    case 6:
      return visit(std::integral_constant<int, 6>());
    default:
      return visit(std::integral_constant<int, 0>());
  }
}

}  // namespace onecard::ops::cuda
