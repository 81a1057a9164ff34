// What follows from the position of a token alone, made where the ops run.
#pragma once

#include <cstdint>
#include <span>

#include "device/exec.h"

namespace onecard::ops {

/// out[i] = first + i * step.
void count_up(const Exec& exec, int64_t first, int64_t step, std::span<int64_t> out);

/// How many groups of `ratio` tokens the query at position first_position + t sees: out[t] =
/// (first_position + t + 1) / ratio. A group is visible from its last token on.
void visible_groups(const Exec& exec, int64_t first_position, int64_t ratio,
                    std::span<int64_t> out);

}  // namespace onecard::ops
