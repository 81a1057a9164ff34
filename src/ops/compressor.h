#pragma once

#include <cstdint>

#include "device/exec.h"
#include "tensor/view.h"

namespace onecard::ops {

/// out[g,c] = sum_i p[i] key_i[c], p = softmax over i of gate_i[c]: the `ratio` tokens of a group,
/// each channel by itself. The keys and gates of token i of group g are row (g * ratio + i) of
/// `keys` and `gates`: [groups * ratio, dim]. out: [groups, dim].
void pool_groups(const Exec& exec, View<const float> keys, View<const float> gates, int64_t ratio,
                 View<float> out);

}  // namespace onecard::ops
