#pragma once

#include <cstdint>
#include <span>

#include "device/exec.h"
#include "ops/linear.h"
#include "tensor/view.h"

namespace onecard::ops {

/// out[t,:] = the row token_ids[t] of table, which is kF32, kF16 or kBf16 [vocab, hidden].
/// out: [tokens, hidden] f32. Throws kInvalidArgument on an id outside the table or another format.
void embed(const Exec& exec, const LinearWeight& table, std::span<const int32_t> token_ids,
           View<float> out);

}  // namespace onecard::ops
