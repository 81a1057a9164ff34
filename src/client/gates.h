// Acceptance gates: short conversations with a running server whose answers can be checked. What
// each shows, and what it does not, is part of its result.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/http.h"

namespace onecard::client {

struct GateResult {
  std::string name;
  bool passed = false;
  std::string found;      // what the server answered, shortened
  std::string shows;      // what a pass means
  std::string not_shown;  // what it does not mean
};

struct GateOptions {
  double min_tokens_per_second = 15;
  double speed_seconds = 30;  // at most so long is measured
  uint64_t seed = 1;          // of the numbers in the paraphrased gates
  bool original = true;       // the six gates with their fixed texts
  bool paraphrased = true;    // the same in other words and numbers; the code at 10, 50 and 90%
};

/// Runs the gates one after the other; `on_result` after each. Throws kIo when the server cannot be
/// reached at all.
std::vector<GateResult> run_gates(Http& http, const GateOptions& options,
                                  const std::function<void(const GateResult&)>& on_result);

}  // namespace onecard::client
