// numpy.random.default_rng(seed).integers(0, bound, size, dtype=int64), reproduced: the n-gram
// hashes of a checkpoint are defined by it. SeedSequence (O'Neill's seed_seq replacement), PCG64
// (O'Neill 2014: XSL-RR over a 128-bit LCG), bounded by Lemire's multiplication (2019).
#pragma once

#include <cstdint>
#include <vector>

namespace onecard::model {

/// `count` integers of [0, bound). bound must be above 2^32 (numpy draws smaller ones another way):
/// kInvalidArgument otherwise.
std::vector<int64_t> numpy_integers(uint64_t seed, int64_t bound, int64_t count);

}  // namespace onecard::model
