// The start-up timing of EXL3 experts on the CPU.
#pragma once

#include <span>

#include "device/cpu/isa.h"
#include "experts/exl3_experts.h"
#include "experts/expert_timing.h"
#include "experts/expert_weights.h"

namespace onecard::experts {

/// Times jobs of random experts of `weights`, one row each, with every count of threads and with
/// and without software prefetch, then how fast the same threads read the same weights; `engine`
/// prefetches as was fastest. Fewer threads than thread_counts[0] have to gain 10 percent; where
/// the weights lie in the last-level cache only thread_counts[0] is tried, since such experts are
/// too small a part of a step to decide for all of it. All experts are EXL3; isa is not kPlain;
/// throws kInvalidArgument without experts or counts.
ExpertTiming choose_fastest_exl3(Exl3Experts& engine, const ExpertWeights& weights, cpu::Isa isa,
                                 std::span<const int> thread_counts);

}  // namespace onecard::experts
