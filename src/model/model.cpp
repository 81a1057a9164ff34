#include "model/model.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "device/memory.h"
#include "experts/cpu_experts.h"
#include "experts/resident_experts.h"
#include "io/lost_pages.h"
#include "model/block.h"
#include "model/decode_table.h"
#include "model/engram_hash.h"
#include "model/rope_tables.h"
#include "model/tensor_table.h"
#include "model/weight_loader.h"
#include "model/workspace.h"
#include "ops/embedding.h"
#include "ops/hyper_connection.h"
#include "ops/linear.h"
#include "ops/positions.h"
#include "ops/rope.h"

namespace onecard::model {

struct Model::Impl {
  Impl(io::Checkpoint checkpoint_in, ModelConfig config_in, const ModelOptions& options);

  void check(const StepContext& ctx, std::span<const int32_t> token_ids) const;
  void request_engram_rows(StepContext& ctx, std::span<const int32_t> token_ids) const;
  View<float> head_inputs(StepContext& ctx, View<const float> x, View<const float> mix) const;

  io::Checkpoint checkpoint;
  const ModelConfig config;
  WeightMemory memory;
  ops::LinearWeight embed;
  ops::LinearWeight head;
  std::span<const float> norm;
  std::vector<Block> blocks;
  std::span<const float> frequencies_main;
  std::span<const float> frequencies_compress;
  std::optional<EngramHash> hash;
  std::unique_ptr<io::EngramReader> engram_reader;
  std::unique_ptr<experts::ExpertEngine> experts;
};

namespace {

experts::ExpertWeights load_experts(const ModelConfig& config, WeightLoader& loader) {
  experts::ExpertWeights weights;
  weights.num_layers = config.num_hidden_layers;
  weights.experts_per_layer = config.n_routed_experts;
  weights.hidden_size = config.hidden_size;
  weights.intermediate_size = config.moe_intermediate_size;
  weights.swiglu_limit = float(config.swiglu_limit);
  for (int64_t l = 0; l < config.num_hidden_layers; ++l)
    for (int64_t e = 0; e < config.n_routed_experts; ++e)
      weights.experts.push_back(
          loader.expert("layers." + std::to_string(l) + ".ffn.experts." + std::to_string(e),
                        config.hidden_size, config.moe_intermediate_size));
  return weights;
}

}  // namespace

Model::Impl::Impl(io::Checkpoint checkpoint_in, ModelConfig config_in, const ModelOptions& options)
    : checkpoint(std::move(checkpoint_in)), config(std::move(config_in)), memory(options.backend) {
  require_complete(account(checkpoint, config), checkpoint);
  WeightLoader loader(checkpoint, memory);
  embed = loader.linear("embed", config.vocab_size, config.hidden_size);
  head = loader.linear("head", config.vocab_size, config.hidden_size);
  norm = loader.vector("norm.weight", config.hidden_size);
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) blocks.emplace_back(config, l, loader);
  frequencies_main = loader.keep(window_frequencies(config));
  frequencies_compress = loader.keep(compress_frequencies(config));

  if (!config.engram_layer_ids.empty()) {
    hash.emplace(config, load_engram_token_map(checkpoint.directory()),
                 checkpoint.directory() + "/engram_token_map.i32");
    std::vector<io::RowTable> tables;
    for (const int64_t layer_idx : config.engram_layer_ids) {
      const auto engram_idx = int64_t(tables.size());
      tables.push_back(
          io::open_row_table(checkpoint, "layers." + std::to_string(layer_idx) + ".engram.embed"));
      const io::RowTable& table = tables.back();
      if (table.num_rows < hash->num_rows(engram_idx) || table.width != config.engram_head_dim)
        throw Error(ErrorCode::kDataCorrupt,
                    table.name + ": expected at least " +
                        std::to_string(hash->num_rows(engram_idx)) + " rows of " +
                        std::to_string(config.engram_head_dim) + ", found " +
                        std::to_string(table.num_rows) + " of " + std::to_string(table.width));
    }
    engram_reader = io::make_pread_engram_reader(std::move(tables), options.engram_threads);
  }

  experts::ExpertWeights expert_weights = load_experts(config, loader);
  if (options.make_experts)
    experts = options.make_experts(std::move(expert_weights));
  else if (options.backend == Backend::kCuda)
    experts = std::make_unique<experts::ResidentExperts>(expert_weights);
  else
    experts =
        std::make_unique<experts::CpuExperts>(std::move(expert_weights), options.expert_precision);
  for (const io::MappedFile& file : checkpoint.files()) file.check_unchanged();
}

void Model::Impl::check(const StepContext& ctx, std::span<const int32_t> token_ids) const {
  require(int64_t(token_ids.size()) == ctx.num_rows() && !token_ids.empty(),
          ErrorCode::kInvalidArgument, "forward: one token id a row, at least one");
  require(ctx.num_rows() <= ctx.workspace->max_rows(), ErrorCode::kInvalidArgument,
          "forward: more rows than the workspace has");
  for (const int32_t id : token_ids)
    if (id < 0 || id >= config.vocab_size)
      throw Error(ErrorCode::kInvalidArgument, "forward: token id " + std::to_string(id) +
                                                   " outside [0, " +
                                                   std::to_string(config.vocab_size) + ")");
  for (const Segment& segment : ctx.segments) {
    if (segment.num_rows > segment.state->room_tokens())
      throw Error(ErrorCode::kResourceExhausted,
                  "forward: " + std::to_string(segment.num_rows) + " more tokens on top of " +
                      std::to_string(segment.state->num_tokens()) + " exceed the capacity of " +
                      std::to_string(segment.state->capacity_tokens()));
    require(segment.state->capacity_tokens() <= ctx.workspace->capacity_tokens(),
            ErrorCode::kInvalidArgument,
            "forward: the sequence holds more tokens than the workspace was made for");
  }
}

void Model::Impl::request_engram_rows(StepContext& ctx, std::span<const int32_t> token_ids) const {
  if (!hash) return;
  Workspace::Buffers& buffers = ctx.buffers();
  // The ids that a token's n-grams reach back to, newest first: cut out of this sequence's ring and
  // of the chunk itself.
  const auto num_columns = size_t(hash->num_columns());
  for (size_t e = 0; e < config.engram_layer_ids.size(); ++e) {
    for (const Segment& segment : ctx.segments) {
      const std::span<int32_t> ring = segment.state->look_back();
      int32_t recent[16];
      for (int64_t i = 0; i < segment.num_rows; ++i) {
        const int64_t position = segment.first_position + i;
        const int64_t num_recent = std::min(position, hash->look_back()) + 1;
        for (int64_t k = 0; k < num_recent; ++k)
          recent[k] = k <= i ? hash->compressed_id(token_ids[size_t(segment.first_row + i - k)])
                             : ring[size_t(position - k) % ring.size()];
        hash->rows(int64_t(e), {recent, size_t(num_recent)},
                   {buffers.engram_row_ids.data() + size_t(segment.first_row + i) * num_columns,
                    num_columns});
      }
    }
    const size_t num_ids = token_ids.size() * num_columns;
    const View<float> rows = buffers.engram_rows[e].host_rows(int64_t(token_ids.size()));
    buffers.engram_requests[e] =
        engram_reader->submit(int64_t(e), {buffers.engram_row_ids.data(), num_ids},
                              View<float>(rows.data, int64_t(num_ids), config.engram_head_dim));
  }
  for (const Segment& segment : ctx.segments) {
    const std::span<int32_t> ring = segment.state->look_back();
    for (int64_t i = 0; i < segment.num_rows; ++i)
      ring[size_t(segment.first_position + i) % ring.size()] =
          hash->compressed_id(token_ids[size_t(segment.first_row + i)]);
  }
}

View<float> Model::Impl::head_inputs(StepContext& ctx, View<const float> x,
                                     View<const float> mix) const {
  const View<float> h = ctx.buffers().hidden.rows(x.rows);
  ops::hc_collapse_norm(ctx.exec, x, mix, norm, float(config.rms_norm_eps), h);
  ctx.observe(config.num_hidden_layers, "head_in", h);
  return h;
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

std::unique_ptr<Model> Model::load(io::Checkpoint checkpoint, ModelConfig config,
                                   const ModelOptions& options) {
  return std::unique_ptr<Model>(
      new Model(std::make_unique<Impl>(std::move(checkpoint), std::move(config), options)));
}

const ModelConfig& Model::config() const { return impl_->config; }
experts::ExpertEngine& Model::experts() const { return *impl_->experts; }
int64_t Model::owned_bytes() const { return impl_->memory.owned_bytes(); }
Backend Model::backend() const { return impl_->memory.backend(); }

void Model::begin(StepContext& ctx, std::span<const int32_t> token_ids, View<float> x,
                  View<float> mix) const {
  stage(ctx, token_ids);
  start(ctx, x, mix);
}

void Model::stage(StepContext& ctx, std::span<const int32_t> token_ids) const {
  impl_->check(ctx, token_ids);
  Workspace::Buffers& buffers = ctx.buffers();
  synchronise(ctx.exec);  // what this workspace staged for its last pass has been read
  impl_->request_engram_rows(ctx, token_ids);
  const View<int32_t> ids = buffers.token_ids.host_rows(int64_t(token_ids.size()));
  std::copy(token_ids.begin(), token_ids.end(), ids.data);
}

void Model::start(StepContext& ctx, View<float> x, View<float> mix) const {
  const View<const int32_t> ids = ctx.buffers().token_ids.rows(ctx.exec, x.rows);
  const View<float> first = x.cols_between(0, config().hidden_size);
  ops::embed(ctx.exec, impl_->embed, {ids.data, size_t(x.rows)}, first);
  ops::hc_begin(ctx.exec, first, x, mix);
  resume(ctx);
}

void Model::await_engram_rows(StepContext& ctx, int64_t layer_idx) const {
  const int64_t engram_idx = config().engram_idx(layer_idx);
  if (engram_idx >= 0) ctx.buffers().engram_requests[size_t(engram_idx)].wait();
}

void Model::resume(StepContext& ctx) const {
  Workspace::Buffers& buffers = ctx.buffers();
  const int64_t num_rows = ctx.num_rows();
  std::span<const int64_t> positions;
  if (ctx.decode_table != nullptr) {
    positions = ctx.decode_table->positions(0, num_rows);
  } else {
    const std::span<int64_t> counted = buffers.positions.values(num_rows);
    for (const Segment& segment : ctx.segments)
      ops::count_up(ctx.exec, segment.first_position, 1,
                    counted.subspan(size_t(segment.first_row), size_t(segment.num_rows)));
    positions = counted;
  }
  const View<float> main = buffers.angles_main.rows(num_rows);
  const View<float> compress = buffers.angles_compress.rows(num_rows);
  ops::rope_angles(ctx.exec, positions, impl_->frequencies_main, main);
  ops::rope_angles(ctx.exec, positions, impl_->frequencies_compress, compress);
  ctx.angles_main = main;
  ctx.angles_compress = compress;
  ctx.selected = {};
  ctx.candidates = {};
}

void Model::run_layer(StepContext& ctx, int64_t layer_idx, int64_t num_out, View<float>& x,
                      View<float>& mix) const {
  impl_->blocks[size_t(layer_idx)].forward(ctx, *impl_->experts, num_out, x, mix);
  io::check_lost_pages();
}

void Model::append_decoder_rows(StepContext& ctx, View<const float> x,
                                View<const float> mix) const {
  impl_->blocks[size_t(config().decoder_begin())].append_global(ctx, x, mix);
}

void Model::logits(StepContext& ctx, View<const float> x, View<const float> mix,
                   View<float> logits) const {
  const View<float> h = impl_->head_inputs(ctx, x, mix);
  if (backend() == Backend::kCpu) return ops::linear(ctx.exec, h, impl_->head, logits);
  for (int64_t begin = 0; begin < x.rows; begin += kMostHeadRows) {
    const int64_t end = std::min(begin + kMostHeadRows, x.rows);
    const View<float> block = ctx.buffers().logits.rows(end - begin);
    ops::linear(ctx.exec, h.rows_between(begin, end), impl_->head, block);
    queue_copy(ctx.exec, logits.row(begin), block.data,
               size_t(block.rows * block.cols) * sizeof(float));
  }
  synchronise(ctx.exec);
}

void Model::head(StepContext& ctx, View<const float> x, View<const float> mix) const {
  const View<float> h = impl_->head_inputs(ctx, x, mix);
  ops::linear(ctx.exec, h, impl_->head, ctx.buffers().logits.rows(x.rows));
}

void Model::fetch_logits(StepContext& ctx, View<float> logits) const {
  const View<float> block = ctx.buffers().logits.rows(logits.rows);
  queue_copy(ctx.exec, logits.data, block.data, size_t(block.rows * block.cols) * sizeof(float));
  synchronise(ctx.exec);
}

}  // namespace onecard::model
