// onecard compare: how far one checkpoint's predictions are from another's, over given token ids,
// and where in the forward the difference begins.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/flag_values.h"
#include "cli/memory_check.h"
#include "engine/decode_step.h"
#include "engine/divergence.h"
#include "engine/prefill_pass.h"
#include "io/checkpoint.h"
#include "model/model.h"
#include "model/trace.h"

namespace onecard::cli {
namespace {

struct CompareFlags {
  std::string reference;
  std::string other;
  std::string tokens_file;
  std::string reference_device = "cpu";
  std::string device = "cpu";
  std::string reference_isa;
  std::string isa;
  std::string expert_precision = "auto";
  int64_t sequence_tokens = 4096;
  int64_t chunk_tokens = 256;
  int64_t decode_tokens = 0;
  double trace_kl = 0;
  int threads = 0;
  bool json = false;
};

/// One side: its model, and a sequence that is started again and again.
class Side {
 public:
  Side(io::Checkpoint checkpoint, const model::ModelConfig& config,
       std::shared_ptr<const CudaDevice> device, cpu::Isa isa, ThreadPool* pool,
       const CompareFlags& flags)
      : device_(std::move(device)),
        exec_(device_ != nullptr ? device_->exec() : Exec{.isa = isa, .pool = pool}),
        model_(model::Model::load(
            std::move(checkpoint), config,
            {.backend = exec_.backend,
             .expert_precision = parse_expert_precision(flags.expert_precision)})),
        state_(model_->config(),
               {.capacity_tokens = flags.sequence_tokens, .backend = exec_.backend}),
        workspace_(model_->config(), flags.chunk_tokens, flags.sequence_tokens, exec_.backend),
        tail_(model_->config(), engine::PrefillMode::kFull, exec_.backend),
        step_(*model_, 1, flags.sequence_tokens),
        traces_(flags.trace_kl > 0),
        logits_(flags.chunk_tokens * model_->vocab_size()) {}

  int64_t vocab_size() const { return model_->vocab_size(); }
  void restart() { state_.clear(); }

  View<const float> logits(std::span<const int32_t> tokens) {
    const View<float> rows = logits_.view(int64_t(tokens.size()), vocab_size());
    engine::PrefillPass pass(exec_, *model_, workspace_, state_, tail_, tokens,
                             {engine::PrefillMode::kFull, true, true, observer()}, rows);
    while (!pass.run_layer()) {
    }
    return rows;
  }
  /// The same of one token, by a decode step.
  View<const float> decode(int32_t token) {
    const View<float> row = logits_.view(1, vocab_size());
    const engine::DecodeStep::Row step{&state_, token};
    step_.run(exec_, {&step, 1}, row, observer());
    return row;
  }
  /// What the last call went through; empty without --trace.
  const model::Trace& trace() const { return trace_; }

 private:
  std::shared_ptr<const CudaDevice> device_;
  Exec exec_;
  std::unique_ptr<model::Model> model_;
  model::SequenceState state_;
  model::Workspace workspace_;
  engine::EncoderTail tail_;
  engine::DecodeStep step_;
  bool traces_;
  model::Trace trace_;
  Buffer<float> logits_;

  model::Observer* observer() {
    trace_.clear();
    return traces_ ? &trace_ : nullptr;
  }
};

struct Totals {
  std::vector<double> kl;  // of every position
  int64_t same_top1 = 0;
  double reference_loss = 0;  // of the next token, where there is one
  double other_loss = 0;
  int64_t losses = 0;
};

/// Returns the position's KL.
double add(std::span<const float> p, std::span<const float> q, int32_t next, Totals& totals) {
  const double kl = engine::divergence(p, q);
  const auto top1 = [](std::span<const float> row) {
    return std::max_element(row.begin(), row.end()) - row.begin();
  };
  totals.kl.push_back(kl);
  totals.same_top1 += top1(p) == top1(q) ? 1 : 0;
  if (next < 0) return kl;
  ++totals.losses;
  totals.reference_loss += engine::log_sum_exp(p) - p[size_t(next)];
  totals.other_loss += engine::log_sum_exp(q) - q[size_t(next)];
  return kl;
}

/// Prints where the two forwards of row `row` part: every choice that tipped, and every value whose
/// error is several times the largest before it.
void print_trace(const Side& reference, const Side& other, int64_t row, int64_t position,
                 double kl) {
  constexpr double kJump = 4;
  std::printf("position %lld: KL %.4g\n", static_cast<long long>(position), kl);
  double largest = 0;
  for (const model::Trace::Difference& difference :
       reference.trace().differences(other.trace(), row, position)) {
    const bool is_choice = difference.name == "selected" || difference.name == "experts";
    if (is_choice ? difference.num_other == 0 : difference.relative <= kJump * largest) continue;
    std::printf("  layer %lld %s: %.3g of it, %lld differ\n",
                static_cast<long long>(difference.layer_idx), difference.name.c_str(),
                difference.relative, static_cast<long long>(difference.num_other));
    if (!is_choice) largest = difference.relative;
  }
}

void print(const Totals& totals, bool as_json) {
  std::vector<double> sorted = totals.kl;
  std::sort(sorted.begin(), sorted.end());
  double sum = 0;
  for (const double kl : sorted) sum += kl;
  const auto quantile = [&](double share) {
    return sorted.empty() ? 0.0 : sorted[size_t(share * double(sorted.size() - 1))];
  };
  const auto positions = double(std::max<size_t>(1, sorted.size()));
  const auto losses = double(std::max<int64_t>(1, totals.losses));
  std::printf(
      as_json ? "{\"positions\":%lld,\"mean_kl\":%.6g,\"median_kl\":%.6g,\"p95_kl\":%.6g,"
                "\"max_kl\":%.6g,\"top1\":%.6g,\"reference_loss\":%.6g,\"other_loss\":%.6g}\n"
              : "positions %lld\nmean KL   %.6g nats\nmedian    %.6g nats\n95%%       %.6g "
                "nats\nmax KL    %.6g nats\nsame top1 %.6g\nloss      %.6g of the reference, %.6g "
                "of the other\n",
      static_cast<long long>(sorted.size()), sum / positions, quantile(0.5), quantile(0.95),
      quantile(1), double(totals.same_top1) / positions, totals.reference_loss / losses,
      totals.other_loss / losses);
}

int run(const CompareFlags& flags) {
  require(flags.sequence_tokens >= 1 && flags.chunk_tokens >= 1 && flags.decode_tokens >= 0,
          ErrorCode::kInvalidArgument, "--sequence and --chunk must be positive");
  const std::vector<int32_t> tokens = read_token_file(flags.tokens_file);
  ThreadPool pool(thread_count(flags.threads));
  const auto reference_device = open_device(flags.reference_device);
  const auto other_device = open_device(flags.device);
  io::Checkpoint reference_checkpoint = io::Checkpoint::open(flags.reference);
  io::Checkpoint other_checkpoint = io::Checkpoint::open(flags.other);
  const model::ModelConfig reference_config = model::load_model_config(flags.reference);
  const model::ModelConfig other_config = model::load_model_config(flags.other);
  // Both are in memory at once, each with a sequence and a workspace; as a rule they are one model,
  // stored in two ways.
  const auto check = [&](int64_t weights, int sides, const CudaDevice* device) {
    check_memory(reference_config,
                 {.weight_bytes = weights,
                  .num_slots = sides,
                  .context_length = flags.sequence_tokens,
                  .prefill_rows = sides * flags.chunk_tokens,
                  .logits_rows = sides * flags.chunk_tokens,
                  .context_flag = "--sequence"},
                 {.device = device});
  };
  const int64_t reference_bytes = weight_bytes(reference_checkpoint);
  const int64_t other_bytes = weight_bytes(other_checkpoint);
  if ((reference_device == nullptr) == (other_device == nullptr)) {
    check(reference_bytes + other_bytes, 2, other_device.get());
  } else {
    check(reference_bytes, 1, reference_device.get());
    check(other_bytes, 1, other_device.get());
  }
  Side reference(std::move(reference_checkpoint), reference_config, reference_device,
                 parse_isa(flags.reference_isa), &pool, flags);
  Side other(std::move(other_checkpoint), other_config, other_device, parse_isa(flags.isa), &pool,
             flags);
  require(reference.vocab_size() == other.vocab_size(), ErrorCode::kInvalidArgument,
          "compare: the two models have different vocabularies");
  Totals totals;
  const auto num_tokens = int64_t(tokens.size());
  for (int64_t begin = 0; begin < num_tokens; begin += flags.sequence_tokens) {
    const int64_t end = std::min(begin + flags.sequence_tokens, num_tokens);
    reference.restart();
    other.restart();
    const int64_t decode_begin = std::max(begin, end - flags.decode_tokens);
    for (int64_t chunk = begin; chunk < end;) {
      const bool decodes = chunk >= decode_begin;
      const int64_t count = decodes ? 1 : std::min(flags.chunk_tokens, decode_begin - chunk);
      const std::span<const int32_t> ids = std::span(tokens).subspan(size_t(chunk), size_t(count));
      const View<const float> p = decodes ? reference.decode(ids[0]) : reference.logits(ids);
      const View<const float> q = decodes ? other.decode(ids[0]) : other.logits(ids);
      double largest = 0;
      int64_t worst = 0;
      for (int64_t t = 0; t < count; ++t) {
        const double kl = add(p.row_span(t), q.row_span(t),
                              chunk + t + 1 < end ? tokens[size_t(chunk + t + 1)] : -1, totals);
        if (kl > largest) {
          largest = kl;
          worst = t;
        }
      }
      if (flags.trace_kl > 0 && largest > flags.trace_kl)
        print_trace(reference, other, worst, chunk + worst - begin, largest);
      chunk += count;
    }
  }
  print(totals, flags.json);
  return 0;
}

}  // namespace

void add_compare(CLI::App& app, Commands& commands) {
  const auto flags = std::make_shared<CompareFlags>();
  CLI::App* command = app.add_subcommand(
      "compare", "Prints KL divergence and top-1 agreement of two checkpoints over token ids");
  command->footer(R"(Example:
  onecard compare models/full models/quantised --tokens-file ids.txt)");
  command->add_option("reference", flags->reference, "Checkpoint directory")->required();
  command->add_option("other", flags->other, "Checkpoint directory")->required();
  command->add_option("--tokens-file", flags->tokens_file, "File of token ids")->required();
  command->add_option("--sequence", flags->sequence_tokens,
                      "Tokens after which a new sequence starts (default: 4096)");
  command->add_option("--chunk", flags->chunk_tokens, "Tokens of a prefill chunk (default: 256)");
  command->add_option("--decode", flags->decode_tokens,
                      "The last tokens of a sequence are fed one a decode step (default: 0)");
  command->add_option(
      "--trace", flags->trace_kl,
      "Show for the worst position of a chunk, where its KL is above this, in which "
      "layer the two part");
  command->add_option("--reference-device", flags->reference_device,
                      "Where the reference runs: cpu, cuda or auto (default: cpu)");
  command->add_option("--device", flags->device, "Where the other runs (default: cpu)");
  command->add_option("--reference-isa", flags->reference_isa,
                      "No wider kernels than this for the reference");
  command->add_option("--isa", flags->isa, "No wider kernels than this for the other");
  command->add_option("--expert-precision", flags->expert_precision,
                      "auto, exact, int16 or int8, of both, wherever kernels are not plain");
  command->add_option("--threads", flags->threads, "CPU threads (default: one a logical CPU)");
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags, &commands] { commands.selected = [flags] { return run(*flags); }; });
}

}  // namespace onecard::cli
