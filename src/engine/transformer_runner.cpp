#include "engine/transformer_runner.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "engine/decode_step.h"
#include "engine/prefix_store.h"
#include "model/sequence_state.h"

namespace onecard::engine {
namespace {

class TransformerRunner final : public ModelRunner {
 public:
  TransformerRunner(std::unique_ptr<model::Model> model, const TransformerOptions& options)
      : model_(std::move(model)),
        options_(options),
        prefill_workspace_(model_->config(), prefill_workspace_rows(model_->config(), options),
                           options.context_length, model_->backend()),
        decode_step_(*model_, options.num_slots, options.context_length) {
    for (int i = 0; i < options.num_slots; ++i) {
      states_.push_back(std::make_unique<model::SequenceState>(
          model_->config(), model::SequenceOptions{.capacity_tokens = options.context_length,
                                                   .backend = model_->backend()}));
      tails_.emplace_back(model_->config(), options.prefill_mode, model_->backend());
    }
    kept_tokens_.resize(size_t(options.num_slots));
    unused_logits_.resize(size_t(model_->vocab_size()));
    if (options.prefix_cache_bytes > 0) {
      const int64_t granularity = states_[0]->global_row_granularity();
      prefixes_.emplace((kBlockTokens + granularity - 1) / granularity * granularity,
                        options.prefix_cache_bytes);
    }
  }

  int num_slots() const override { return options_.num_slots; }
  int64_t context_length() const override { return options_.context_length; }
  int64_t vocab_size() const override { return model_->vocab_size(); }

  std::unique_ptr<ChunkPass> start_chunk(int slot, std::span<const int32_t> tokens, bool last,
                                         View<float> logits) override;
  void decode(std::span<const DecodeRow> rows, View<float> logits) override;
  void release(int slot) override {
    states_[size_t(slot)]->clear();
    tails_[size_t(slot)].clear();
    kept_tokens_[size_t(slot)] = 0;
  }
  int64_t restore_prefix(int slot, std::span<const int32_t> prompt, std::string_view salt) override;
  void keep_prefix(int slot, std::span<const int32_t> tokens, std::string_view salt) override;

 private:
  static constexpr int64_t kBlockTokens = 64;

  // One chunk; the pass borrows everything from the runner.
  class Pass final : public ChunkPass {
   public:
    Pass(TransformerRunner& runner, int slot, std::span<const int32_t> tokens, bool last,
         View<float> logits)
        : runner_(runner),
          slot_(slot),
          last_(last),
          pass_(runner.exec(), *runner.model_, runner.prefill_workspace_,
                *runner.states_[size_t(slot)], runner.tails_[size_t(slot)], tokens,
                PrefillOptions{
                    .mode = logits.rows > 0 ? PrefillMode::kFull : runner.options_.prefill_mode,
                    .last = last,
                    .all_logits = logits.rows > 0},
                logits.rows > 0 ? logits
                : last          ? View<float>(runner.unused_logits_.data(), 1, runner.vocab_size())
                                : View<float>()) {}

    bool run_layer() override {
      if (!pass_.run_layer()) return false;
      if (last_) runner_.tails_[size_t(slot_)].clear();
      return true;
    }

   private:
    TransformerRunner& runner_;
    const int slot_;
    const bool last_;
    PrefillPass pass_;
  };

  void use_device() const {
    if (options_.device != nullptr) options_.device->use();
  }
  // The engine thread's, which is not the one that made this object.
  Exec exec() {
    if (options_.device != nullptr) {
      use_device();
      return options_.device->exec();
    }
    if (pool_ == nullptr) pool_ = std::make_unique<ThreadPool>(options_.num_threads);
    return {.isa = options_.isa, .pool = pool_.get(), .dense_int16 = options_.dense_int16};
  }

  std::unique_ptr<model::Model> model_;
  const TransformerOptions options_;
  std::unique_ptr<ThreadPool> pool_;
  model::Workspace prefill_workspace_;
  DecodeStep decode_step_;
  std::vector<std::unique_ptr<model::SequenceState>> states_;
  std::vector<EncoderTail> tails_;     // of the prompts that are being read, by slot
  std::vector<DecodeStep::Row> rows_;  // scratch
  std::vector<float> unused_logits_;   // of the end of a prompt: a decode step follows
  std::optional<PrefixStore> prefixes_;
  std::vector<int64_t> kept_tokens_;  // of each slot: where its last prefix ends
};

std::unique_ptr<ChunkPass> TransformerRunner::start_chunk(int slot, std::span<const int32_t> tokens,
                                                          bool last, View<float> logits) {
  return std::make_unique<Pass>(*this, slot, tokens, last, logits);
}

int64_t TransformerRunner::restore_prefix(int slot, std::span<const int32_t> prompt,
                                          std::string_view salt) {
  if (!prefixes_) return 0;
  use_device();
  const auto readable = prompt.first(prompt.size() - 1);
  // Without the decoder's windows, so many tokens have to follow that they come anew.
  const int64_t tail_tokens = model::exact_tail_tokens(model_->config());
  const PrefixStore::Prefix* const prefix =
      prefixes_->find(readable, salt, [&](const model::Snapshot& snapshot) {
        return snapshot.has_decoder_windows ||
               (options_.prefill_mode == PrefillMode::kExact &&
                int64_t(readable.size()) - snapshot.num_tokens >= tail_tokens);
      });
  if (prefix == nullptr) return 0;
  model::SequenceState& state = *states_[size_t(slot)];
  state.restore(PrefixStore::snapshot(*prefix));
  PrefixStore::write_rows(*prefix,
                          [&](int64_t begin, int64_t end, std::span<const std::byte> rows) {
                            state.write_global_rows(begin, end, rows);
                          });
  kept_tokens_[size_t(slot)] = state.num_tokens();
  return state.num_tokens();
}

void TransformerRunner::keep_prefix(int slot, std::span<const int32_t> tokens,
                                    std::string_view salt) {
  const model::SequenceState& state = *states_[size_t(slot)];
  if (!prefixes_ || tokens.empty() || state.num_tokens() != int64_t(tokens.size())) return;
  use_device();
  const bool whole = state.has_decoder_windows();
  // Inside a prompt, now and then: a snapshot is as large as the rows of some thousand tokens.
  int64_t& kept = kept_tokens_[size_t(slot)];
  if (!whole && state.num_tokens() - kept < options_.prefix_stride_tokens) return;
  kept = state.num_tokens();
  if (prefixes_->contains(tokens, salt)) return;
  using Windows = model::SequenceState::Windows;
  prefixes_->put(tokens, salt, state.snapshot(whole ? Windows::kAll : Windows::kEncoder),
                 [&](int64_t begin, int64_t end) {
                   std::vector<std::byte> rows(size_t(state.global_rows_bytes(begin, end)));
                   state.read_global_rows(begin, end, rows);
                   return rows;
                 });
}

void TransformerRunner::decode(std::span<const DecodeRow> rows, View<float> logits) {
  rows_.clear();
  for (const DecodeRow& row : rows) rows_.push_back({states_[size_t(row.slot)].get(), row.token});
  decode_step_.run(exec(), rows_, logits);
}

}  // namespace

int64_t prefill_workspace_rows(const model::ModelConfig& config,
                               const TransformerOptions& options) {
  return PrefillPass::workspace_rows(config, options.prefill_mode, options.prefill_chunk_tokens);
}

int64_t prefill_tail_rows(const model::ModelConfig& config, const TransformerOptions& options) {
  return PrefillPass::workspace_rows(config, options.prefill_mode, 0);
}

std::unique_ptr<ModelRunner> make_transformer_runner(std::unique_ptr<model::Model> model,
                                                     const TransformerOptions& options) {
  require(options.num_slots >= 1, ErrorCode::kInvalidArgument, "num_slots: must be at least 1");
  require(options.context_length >= 2, ErrorCode::kInvalidArgument,
          "context_length: must be at least 2");
  require((options.device != nullptr) == (model->backend() == Backend::kCuda),
          ErrorCode::kInvalidArgument, "device: the model was loaded elsewhere");
  require(options.prefill_chunk_tokens >= 1, ErrorCode::kInvalidArgument,
          "prefill_chunk_tokens: must be at least 1");
  return std::make_unique<TransformerRunner>(std::move(model), options);
}

}  // namespace onecard::engine
