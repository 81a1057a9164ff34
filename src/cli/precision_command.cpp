// onecard precision: how far the faster arithmetics of the CPU are from the exact one on a model,
// and the record of it that lets a server use them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/flag_values.h"
#include "cli/memory_check.h"
#include "cli/text_documents.h"
#include "engine/decode_step.h"
#include "engine/divergence.h"
#include "engine/prefill_pass.h"
#include "experts/cpu_experts.h"
#include "io/checkpoint.h"
#include "model/model.h"
#include "model/precision_record.h"

namespace onecard::cli {
namespace {

constexpr int64_t kChunkTokens = 256;

struct PrecisionFlags {
  std::string model;
  std::string text;
  int64_t prompt_tokens = model::PrecisionMeasure::kMinPromptTokens;
  int64_t decoded_tokens = model::PrecisionMeasure::kMinDecodedTokens;
  int threads = 0;
};

/// A sequence and how it is computed; all share one model.
struct Side {
  Side(const model::Model& model, const Exec& exec_in, model::Arithmetic arithmetic_in,
       int64_t capacity_tokens)
      : exec(exec_in),
        arithmetic(arithmetic_in),
        state(model.config(), {.capacity_tokens = capacity_tokens}),
        tail(model.config(), engine::PrefillMode::kFull),
        logits(kChunkTokens * model.vocab_size()) {
    exec.dense_int16 = arithmetic.dense_int16;
  }

  Exec exec;
  model::Arithmetic arithmetic;
  model::SequenceState state;
  engine::EncoderTail tail;
  Buffer<float> logits;
  double sum_kl = 0, largest_kl = 0;
};

/// False where another precision would be computed in its place: int8 needs AVX-512 VNNI.
bool computed_here(const model::Arithmetic& arithmetic) {
  const ops::Exl3KernelSet kernels(cpu::detect_isa(), *arithmetic.experts, exl3::Codebook::kMul1,
                                   3);
  return kernels.for_rows(1).precision == *arithmetic.experts;
}

class Comparison {
 public:
  Comparison(const model::ModelConfig& config, io::Checkpoint checkpoint, ThreadPool& pool,
             int64_t capacity_tokens)
      : model_(model::Model::load(std::move(checkpoint), config,
                                  {.make_experts =
                                       [this](experts::ExpertWeights weights) {
                                         auto made = std::make_unique<experts::CpuExperts>(
                                             std::move(weights));
                                         experts_ = made.get();
                                         return made;
                                       }})),
        workspace_(config, kChunkTokens, capacity_tokens),
        step_(*model_, 1, capacity_tokens),
        reference_(*model_, {.isa = cpu::Isa::kPlain, .pool = &pool}, {}, capacity_tokens) {
    for (const model::Arithmetic& arithmetic : model::measured_arithmetics())
      if (computed_here(arithmetic))
        sides_.push_back(std::make_unique<Side>(
            *model_, Exec{.isa = cpu::detect_isa(), .pool = &pool}, arithmetic, capacity_tokens));
  }

  int64_t vocab_size() const { return model_->vocab_size(); }

  void read(std::span<const int32_t> prompt) {
    for (size_t begin = 0; begin < prompt.size(); begin += size_t(kChunkTokens)) {
      const auto chunk =
          prompt.subspan(begin, std::min(prompt.size() - begin, size_t(kChunkTokens)));
      prefill(reference_, chunk);
      for (const auto& side : sides_) {
        prefill(*side, chunk);
        for (int64_t t = 0; t < int64_t(chunk.size()); ++t) add_row(*side, t);
      }
      next_ = row(reference_, int64_t(chunk.size()) - 1);
      std::fprintf(stderr, "precision: %zu of %zu tokens read\n", begin + chunk.size(),
                   prompt.size());
    }
  }

  /// What the reference would say, told to all.
  void decode(int64_t tokens) {
    for (int64_t i = 0; i < tokens; ++i) {
      const auto token = int32_t(std::max_element(next_.begin(), next_.end()) - next_.begin());
      decode(reference_, token);
      for (const auto& side : sides_) {
        decode(*side, token);
        add_row(*side, 0);
      }
      next_ = row(reference_, 0);
    }
  }

  const model::Arithmetic& arithmetic(size_t side_idx) const {
    return sides_[side_idx]->arithmetic;
  }
  /// Mean and largest since the last call, for each arithmetic.
  std::vector<std::pair<double, double>> take(int64_t rows) {
    std::vector<std::pair<double, double>> result;
    for (const auto& side : sides_) {
      result.emplace_back(side->sum_kl / double(std::max<int64_t>(1, rows)), side->largest_kl);
      side->sum_kl = side->largest_kl = 0;
    }
    return result;
  }

 private:
  std::span<const float> row(const Side& side, int64_t t) const {
    return {side.logits.data() + t * vocab_size(), size_t(vocab_size())};
  }
  void add_row(Side& side, int64_t t) const {
    const double kl = engine::divergence(row(reference_, t), row(side, t));
    require(std::isfinite(kl), ErrorCode::kDataCorrupt,
            "precision: the predictions are not finite");
    side.sum_kl += kl;
    side.largest_kl = std::max(side.largest_kl, kl);
  }
  void prefill(Side& side, std::span<const int32_t> chunk) {
    experts_->set_precision(side.arithmetic.experts);
    engine::PrefillPass pass(side.exec, *model_, workspace_, side.state, side.tail, chunk,
                             {.mode = engine::PrefillMode::kFull, .last = true, .all_logits = true},
                             side.logits.view(int64_t(chunk.size()), vocab_size()));
    while (!pass.run_layer()) {
    }
  }
  void decode(Side& side, int32_t token) {
    experts_->set_precision(side.arithmetic.experts);
    const std::vector<engine::DecodeStep::Row> rows{{&side.state, token}};
    step_.run(side.exec, rows, side.logits.view(1, vocab_size()));
  }

  experts::CpuExperts* experts_ = nullptr;  // the model's
  std::unique_ptr<model::Model> model_;
  model::Workspace workspace_;
  engine::DecodeStep step_;
  Side reference_;
  std::vector<std::unique_ptr<Side>> sides_;
  std::span<const float> next_;  // the reference's last logits
};

const char* dense_name(const model::Arithmetic& a) { return a.dense_int16 ? "int16" : "exact"; }

int run(const PrecisionFlags& flags) {
  require(cpu::detect_isa() != cpu::Isa::kPlain, ErrorCode::kUnsupported,
          "precision: this processor has the plain path alone, which is exact");
  const auto documents = read_documents("--text", flags.text, flags.model, flags.prompt_tokens);
  std::vector<int32_t> prompt;
  for (const auto& document : documents)
    prompt.insert(prompt.end(), document.begin(), document.end());
  const int64_t capacity = int64_t(prompt.size()) + flags.decoded_tokens;
  const model::ModelConfig config = model::load_model_config(flags.model);
  io::Checkpoint checkpoint = io::Checkpoint::open(flags.model);
  const auto sides = 1 + int(model::measured_arithmetics().size());
  check_memory(config, {.weight_bytes = weight_bytes(checkpoint),
                        .num_slots = sides,
                        .context_length = capacity,
                        .prefill_rows = kChunkTokens,
                        .logits_rows = sides * kChunkTokens,
                        .context_flag = "--prompt"});
  model::PrecisionRecord record;
  record.weights = model::weights_fingerprint(checkpoint);

  ThreadPool pool(thread_count(flags.threads));
  Comparison comparison(config, std::move(checkpoint), pool, capacity);
  comparison.read(prompt);
  const auto read = comparison.take(int64_t(prompt.size()));
  comparison.decode(flags.decoded_tokens);
  const auto decoded = comparison.take(flags.decoded_tokens);

  std::printf("dense experts  mean KL of %zu prompt tokens, of %lld decoded; largest\n",
              prompt.size(), static_cast<long long>(flags.decoded_tokens));
  for (size_t i = 0; i < read.size(); ++i) {
    model::PrecisionMeasure measure;
    measure.arithmetic = comparison.arithmetic(i);
    measure.prompt_tokens = int64_t(prompt.size());
    measure.decoded_tokens = flags.decoded_tokens;
    measure.prompt_kl = read[i].first;
    measure.decoded_kl = decoded[i].first;
    measure.largest_kl = std::max(read[i].second, decoded[i].second);
    record.measures.push_back(measure);
    std::printf("%-5s %-7s  %.3g  %.3g  %.3g  %s\n", dense_name(measure.arithmetic),
                ops::exl3_precision_name(*measure.arithmetic.experts), measure.prompt_kl,
                measure.decoded_kl, measure.largest_kl, measure.passes() ? "passes" : "fails");
  }
  model::write_precision_record(flags.model, record);
  return 0;
}

}  // namespace

void add_precision(CLI::App& app, Commands& commands) {
  const auto flags = std::make_shared<PrecisionFlags>();
  CLI::App* command = app.add_subcommand(
      "precision",
      "Measures what faster arithmetic on the CPU does to a model's predictions, and records it");
  command->footer(
      R"(The exact path reads the text and goes on greedily; every faster arithmetic reads the same. Those
whose predictions stay within 0.0001 nats on average are used by serve from then on (--expert-precision).
int8 is measured where the processor has kernels for it (AVX-512 VNNI).
The record lies in MODEL/precision.json and is void for other weights.

Example:
  onecard precision models/demo --text tools/demo_model/calibration.jsonl)");
  command->add_option("model", flags->model, "The model's directory")->required();
  command->add_option("--text", flags->text, "What is read: JSON lines, each a string")->required();
  command->add_option("--prompt", flags->prompt_tokens, "Tokens read of it; fewer prove nothing")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  command->add_option("--decode", flags->decoded_tokens, "Tokens said after it, likewise")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24))
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "CPU threads (default: one a logical CPU)");
  command->callback([flags, &commands] { commands.selected = [flags] { return run(*flags); }; });
}

}  // namespace onecard::cli
