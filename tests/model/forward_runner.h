// Runs prompts through PrefillPass and DecodeStep and keeps all logits; shared by the tests of the
// forward.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "device/cuda_device.h"
#include "engine/decode_step.h"
#include "engine/prefill_pass.h"
#include "model/model.h"

namespace onecard::test {

using Row = std::vector<float>;

struct RunOptions {
  engine::PrefillMode mode = engine::PrefillMode::kFull;
  cpu::Isa isa = cpu::Isa::kPlain;
  int threads = 1;
  std::vector<int64_t> chunks = {};  // empty: the whole prompt at once
  model::Observer* observer = nullptr;
  int64_t max_rollback_tokens = 0;
  const CudaDevice* device = nullptr;  // null: the CPU
};

/// One sequence and what it takes to run it.
class Runner {
 public:
  Runner(const model::Model& model, const RunOptions& options, int64_t capacity_tokens)
      : model_(model),
        options_(options),
        pool_(options.threads),
        state_(model.config(), {.capacity_tokens = capacity_tokens,
                                .max_rollback_tokens = options.max_rollback_tokens,
                                .backend = model.backend()}),
        workspace_(
            model.config(),
            engine::PrefillPass::workspace_rows(model.config(), options.mode, capacity_tokens),
            capacity_tokens, model.backend()),
        tail_(model.config(), options.mode, model.backend()),
        step_(model, 4, capacity_tokens) {}

  Exec exec() {
    if (options_.device != nullptr) return options_.device->exec();
    return {.isa = options_.isa, .pool = &pool_};
  }
  model::SequenceState& state() { return state_; }

  /// Logits of every token of a FULL prefill, else of the last.
  std::vector<Row> prefill(std::span<const int32_t> tokens) {
    std::vector<int64_t> chunks = options_.chunks;
    if (chunks.empty()) chunks.push_back(int64_t(tokens.size()));
    std::vector<Row> all;
    size_t begin = 0;
    for (const int64_t chunk : chunks) {
      const bool full = options_.mode == engine::PrefillMode::kFull;
      const bool last = begin + size_t(chunk) == tokens.size();
      const int64_t due = full ? chunk : last ? 1 : 0;
      Row logits(size_t(due * model_.vocab_size()));
      engine::PrefillPass pass(exec(), model_, workspace_, state_, tail_,
                               tokens.subspan(begin, size_t(chunk)),
                               {options_.mode, last, full, options_.observer},
                               View<float>(logits.data(), due, model_.vocab_size()));
      while (!pass.run_layer()) {
      }
      for (int64_t t = 0; t < due; ++t)
        all.emplace_back(logits.begin() + t * model_.vocab_size(),
                         logits.begin() + (t + 1) * model_.vocab_size());
      begin += size_t(chunk);
    }
    return all;
  }

  Row decode(int32_t token) {
    Row logits(static_cast<size_t>(model_.vocab_size()));
    const engine::DecodeStep::Row row{&state_, token};
    step_.run(exec(), {&row, 1}, View<float>(logits.data(), 1, model_.vocab_size()),
              options_.observer);
    return logits;
  }

  std::vector<Row> decode_all(std::span<const int32_t> tokens) {
    std::vector<Row> all;
    for (const int32_t token : tokens) all.push_back(decode(token));
    return all;
  }

 private:
  const model::Model& model_;
  RunOptions options_;
  ThreadPool pool_;
  model::SequenceState state_;
  model::Workspace workspace_;
  engine::EncoderTail tail_;
  engine::DecodeStep step_;
};

}  // namespace onecard::test
