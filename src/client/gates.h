// Acceptance gates: short conversations with a running server whose answers can be checked. What
// each shows, and what it does not, is part of its result.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "client/chat_client.h"

namespace onecard::client {

struct GateOptions {
  double min_tokens_per_second = 15;
  double speed_seconds = 30;   // an answer is measured for so long, and then runs to its end
  double wait_seconds = 0;     // until the server answers for the first time
  int64_t context_tokens = 0;  // what the context gates are scaled to; 0: what the server names
  uint64_t seed = 1;           // of every request, and of the numbers in the paraphrased gates
  int repeat = 1;              // each gate so often, with the seeds that follow; all have to pass
  bool original = true;        // the six gates with their fixed texts
  bool paraphrased = true;     // the same in other words and numbers; the code at 10, 50 and 90%
  std::vector<std::string> only;  // these gates alone, by name; empty: all
};

enum class GateOutcome {
  kPassed,
  kFailed,
  kNotRun,  // because the server does not answer
};

struct GateResult {
  std::string name;       // "context", "context 10%"
  bool original = true;   // one of the six; otherwise one in other words
  std::string asks;       // what is asked, shortened
  std::string rule;       // what a pass asks for
  std::string shows;      // what a pass means
  std::string not_shown;  // what it does not mean
  GateOutcome outcome = GateOutcome::kNotRun;
  int num_passed = 0, num_runs = 0;
  std::string
      found;  // what the server answered, shortened: of the first run that failed, or the last
  double seconds = 0;
  std::vector<std::pair<std::string, double>> figures;  // of the last run: "prefill_tok_s"
};

struct GateReport {
  std::string model;
  int64_t context_tokens = 0;
  std::vector<GateResult> results;

  bool passed() const;  // every one of them
};

/// Runs the gates one after the other; `on_result` after each. A server that cannot be reached
/// fails the first, and the others are not run. Throws kInvalidArgument when `only` names no gate.
GateReport run_gates(ChatClient& client, const GateOptions& options,
                     const std::function<void(const GateReport&, const GateResult&)>& on_result);

}  // namespace onecard::client
