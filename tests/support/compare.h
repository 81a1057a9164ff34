// Comparisons of float arrays for tests.
#pragma once

#include <span>

namespace onecard::test {

/// max |got - want| / max |want|: the error relative to the largest expected value. Infinite if any
/// value is NaN.
double max_rel_error(std::span<const float> got, std::span<const float> want);
/// max |got - want|. Infinite if any value is NaN or the sizes differ.
double max_abs_error(std::span<const float> got, std::span<const float> want);
/// sqrt(sum (got - want)^2 / sum want^2).
double rel_rms_error(std::span<const float> got, std::span<const float> want);

}  // namespace onecard::test
