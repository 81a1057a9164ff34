#include "sparse_checkpoint/sparse_checkpoint.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "io/file.h"
#include "model/tensor_table.h"

namespace onecard::sparse {
namespace {

using io::ShardSpec;
using io::TensorSpec;
using model::ModelConfig;
using model::ModuleSpec;
using model::TensorGroup;

using Tensors = std::vector<TensorSpec>;

bool ends_with(const std::string& name, std::string_view end) {
  return std::string_view(name).ends_with(end);
}

// Plain tensors are bf16, but for these.
DType plain_dtype(const std::string& name) {
  const bool is_f32 = name.find(".hc_") != std::string::npos || ends_with(name, "attn_sink") ||
                      name.find("gate.bias") != std::string::npos;
  return is_f32 ? DType::kF32 : DType::kBf16;
}

void add_plain(Tensors& tensors, const std::string& name, std::vector<int64_t> shape) {
  tensors.push_back({name, plain_dtype(name), std::move(shape)});
}

void add_fp8(Tensors& tensors, const std::string& module, int64_t out, int64_t in) {
  tensors.push_back({module + ".weight", DType::kF8E4m3, {out, in}});
  tensors.push_back({module + ".scale", DType::kF8E8m0, {out / 32, in / 32}});
}

void add_fp4(Tensors& tensors, const std::string& module, int64_t out, int64_t in) {
  tensors.push_back({module + ".weight", DType::kI8, {out, in / 2}});
  tensors.push_back({module + ".scale", DType::kF8E8m0, {out, in / 32}});
}

void add_exl3(Tensors& tensors, const std::string& module, int64_t out, int64_t in, int bits) {
  tensors.push_back({module + ".suh", DType::kF16, {in}});
  tensors.push_back({module + ".svh", DType::kF16, {out}});
  tensors.push_back({module + ".mul1", DType::kI32, {}});
  tensors.push_back({module + ".trellis", DType::kI16, {in / 16, out / 16, 16 * bits}});
}

// Matrices that the published checkpoint keeps in bf16.
bool is_bf16_matrix(const std::string& name) {
  return name == "head" || ends_with(name, "compressor.wkv") ||
         ends_with(name, "compressor.wgate") || ends_with(name, "indexer.wk") ||
         ends_with(name, "indexer.weights_proj");
}

void add_official(Tensors& tensors, const ModuleSpec& module) {
  const int64_t rows = module.shape[0];
  switch (module.kind) {
    case ModuleSpec::Kind::kTensor:
      return add_plain(tensors, module.name, module.shape);
    case ModuleSpec::Kind::kTable:
      tensors.push_back({module.name + ".weight", DType::kF8E4m3, module.shape});
      tensors.push_back({module.name + ".scale", DType::kF8E8m0, {rows, module.shape[1] / 32}});
      return;
    case ModuleSpec::Kind::kLinear:
      if (is_bf16_matrix(module.name))
        return add_plain(tensors, module.name + ".weight", module.shape);
      if (module.group == TensorGroup::kRoutedExperts)
        return add_fp4(tensors, module.name, rows, module.shape[1]);
      return add_fp8(tensors, module.name, rows, module.shape[1]);
  }
}

void add_exl3_pack(Tensors& tensors, const ModuleSpec& module, int default_bits) {
  if (module.kind == ModuleSpec::Kind::kTable || !module.used) return;
  if (module.kind == ModuleSpec::Kind::kTensor)
    return add_plain(tensors, module.name, module.shape);
  if (ends_with(module.name, "indexer.weights_proj"))
    return add_plain(tensors, module.name + ".weight", module.shape);
  int bits = default_bits;
  if (module.name == "head") bits = 6;
  if (module.group == TensorGroup::kRoutedExperts && default_bits == 5) bits = 3;
  if (module.num_slices == 1)
    return add_exl3(tensors, module.name, module.shape[0], module.shape[1], bits);
  for (int64_t i = 0; i < module.num_slices; ++i)
    add_exl3(tensors, module.name + ".slice." + std::to_string(i),
             module.shape[0] / module.num_slices, module.shape[1], bits);
}

// A draft layer is a window-only layer with fewer experts: its modules are those of the only layer
// of such a model, under another prefix.
std::vector<ModuleSpec> draft_modules(const ModelConfig& config, int64_t draft_idx) {
  ModelConfig one = config;
  one.num_hidden_layers = 1;
  one.compress_ratios = {0};
  one.kv_source_layer_ids.clear();
  one.index_source_layer_ids.clear();
  one.candidate_source_layer_id = -1;
  one.engram_layer_ids.clear();
  one.engram_num_embeddings.clear();
  one.n_routed_experts = config.dspark_n_routed_experts;
  constexpr std::string_view kLayer = "layers.0.";
  std::vector<ModuleSpec> modules;
  for (ModuleSpec& module : model::model_modules(one)) {
    if (!module.name.starts_with(kLayer)) continue;
    module.name = "mtp." + std::to_string(draft_idx) + "." + module.name.substr(kLayer.size());
    modules.push_back(std::move(module));
  }
  return modules;
}

void add_draft_ends(Tensors& tensors, const ModelConfig& config, int64_t draft_idx, bool exl3) {
  const std::string prefix = "mtp." + std::to_string(draft_idx) + ".";
  const int64_t hidden = config.hidden_size;
  if (draft_idx == 0) {
    const int64_t features = int64_t(config.dspark_target_layer_ids.size()) * hidden;
    if (exl3)
      add_exl3(tensors, prefix + "main_proj", hidden, features, 4);
    else
      add_fp8(tensors, prefix + "main_proj", hidden, features);
    add_plain(tensors, prefix + "main_norm.weight", {hidden});
  }
  if (draft_idx == config.num_nextn_predict_layers - 1) {
    const int64_t rank = config.dspark_markov_rank;
    add_plain(tensors, prefix + "norm.weight", {hidden});
    add_plain(tensors, prefix + "markov_head.embed.weight", {config.vocab_size, rank});
    add_plain(tensors, prefix + "markov_head.head.weight", {config.vocab_size, rank});
    add_plain(tensors, prefix + "confidence_head.proj.weight", {1, hidden + rank});
  }
}

void add_image_tokens(Tensors& tensors, const ModelConfig& config) {
  for (const char* name : {"image_start", "image_end", "image_newline"})
    add_plain(tensors, name, {config.hidden_size});
}

// 263 tensors of 485,253,120 bf16 values: a plan that has the published number and size. Only the
// prefixes of the names are published; readers of text go by those.
void add_vision(Tensors& tensors, const ModelConfig& config) {
  constexpr int64_t kWidth = 1024;
  constexpr int64_t kInner = 2816;
  constexpr int64_t kPatch = 14 * 14 * 3;
  constexpr int64_t kMerged = 3 * 3 * kWidth;
  add_plain(tensors, "vision.patch_embed.weight", {kWidth, kPatch});
  add_plain(tensors, "vision.patch_embed.bias", {kWidth});
  for (int layer = 0; layer < 32; ++layer) {
    const std::string block = "vision.blocks." + std::to_string(layer) + ".";
    add_plain(tensors, block + "norm1.weight", {kWidth});
    add_plain(tensors, block + "attn.qkv.weight", {3 * kWidth, kWidth});
    add_plain(tensors, block + "attn.qkv.bias", {3 * kWidth});
    add_plain(tensors, block + "attn.proj.weight", {kWidth, kWidth});
    add_plain(tensors, block + "attn.proj.bias", {kWidth});
    add_plain(tensors, block + "norm2.weight", {kWidth});
    add_plain(tensors, block + "mlp.w13.weight", {2 * kInner, kWidth});
    add_plain(tensors, block + "mlp.w2.weight", {kWidth, kInner});
  }
  add_plain(tensors, "vision.norm.weight", {kWidth});
  add_plain(tensors, "aligner.w1.weight", {config.hidden_size, kMerged});
  add_plain(tensors, "aligner.w1.bias", {config.hidden_size});
  add_plain(tensors, "aligner.w2.weight", {config.hidden_size, config.hidden_size});
  add_plain(tensors, "aligner.w2.bias", {config.hidden_size});
}

std::string shard_name(size_t number, size_t count) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", number, count);
  return name;
}

std::vector<ShardSpec> name_shards(std::vector<Tensors> lists) {
  std::vector<ShardSpec> shards;
  for (size_t i = 0; i < lists.size(); ++i)
    shards.push_back({shard_name(i + 1, lists.size()), std::move(lists[i])});
  return shards;
}

// "layers.17.attn.wq_a" -> 17; -1 for what is in no layer.
int64_t layer_of(const std::string& name) {
  if (!name.starts_with("layers.")) return -1;
  return std::stoll(name.substr(7));
}

}  // namespace

std::vector<ShardSpec> official_shards(const ModelConfig& config) {
  const auto num_layers = size_t(config.num_hidden_layers);
  const auto num_drafts = size_t(config.num_nextn_predict_layers);
  const size_t first_layer = 2;
  const size_t ends = first_layer + num_layers;
  const size_t first_draft = ends + 1;
  const size_t first_engram = first_draft + num_drafts;
  std::vector<Tensors> lists(first_engram + config.engram_layer_ids.size());
  add_vision(lists[0], config);
  add_image_tokens(lists[1], config);
  for (const ModuleSpec& module : model::model_modules(config)) {
    const int64_t layer = layer_of(module.name);
    size_t list = 1;
    if (module.name == "head" || module.name == "norm.weight") list = ends;
    if (layer >= 0) list = first_layer + size_t(layer);
    if (module.name.find(".engram.") != std::string::npos)
      list = first_engram + size_t(config.engram_idx(layer));
    add_official(lists[list], module);
  }
  for (size_t i = 0; i < num_drafts; ++i) {
    for (const ModuleSpec& module : draft_modules(config, int64_t(i)))
      add_official(lists[first_draft + i], module);
    add_draft_ends(lists[first_draft + i], config, int64_t(i), /*exl3=*/false);
  }
  return name_shards(std::move(lists));
}

std::vector<ShardSpec> exl3_shards(const ModelConfig& config) {
  const auto num_layers = size_t(config.num_hidden_layers);
  std::vector<Tensors> lists(num_layers + 1);
  Tensors& rest = lists[num_layers];
  for (const ModuleSpec& module : model::model_modules(config)) {
    const int64_t layer = layer_of(module.name);
    add_exl3_pack(layer < 0 ? rest : lists[size_t(layer)], module, 5);
  }
  for (int64_t i = 0; i < config.num_nextn_predict_layers; ++i) {
    for (const ModuleSpec& module : draft_modules(config, i)) add_exl3_pack(rest, module, 4);
    add_draft_ends(rest, config, i, /*exl3=*/true);
  }
  add_vision(rest, config);
  add_image_tokens(rest, config);
  return name_shards(std::move(lists));
}

void write_sparse(const std::string& directory, const std::vector<ShardSpec>& shards,
                  const ModelConfig& config) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(directory, error);
  std::vector<json::Member> places;
  for (const ShardSpec& shard : shards) {
    const std::string path = (fs::path(directory) / shard.file).string();
    const std::string header = io::safetensors_header(shard.tensors);
    io::write_file_atomically(path, header);
    auto size = int64_t(header.size());
    for (const TensorSpec& tensor : shard.tensors) {
      size += tensor.size_bytes();
      places.emplace_back(tensor.name, json::Value::string(shard.file));
    }
    fs::resize_file(path, uintmax_t(size), error);  // grows by a hole
    if (error)
      throw Error(ErrorCode::kIo,
                  path + ": cannot grow to " + std::to_string(size) + " bytes: " + error.message());
  }
  const json::Value index =
      json::Value::object({{"weight_map", json::Value::object(std::move(places))}});
  io::write_file_atomically((fs::path(directory) / "model.safetensors.index.json").string(),
                            json::dump(index));
  io::write_file_atomically((fs::path(directory) / "config.json").string(),
                            model::model_config_json(config));
}

}  // namespace onecard::sparse
