#include "model/tensor_table.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "quant/exl3/codebook.h"

namespace onecard::model {
namespace {

constexpr int64_t kTableScaleBlock = 32;

// Collects the modules of a model under growing name prefixes.
class ModuleList {
 public:
  void tensor(TensorGroup group, std::string name, std::vector<int64_t> shape, bool used = true) {
    modules_.push_back(
        {ModuleSpec::Kind::kTensor, group, std::move(name), std::move(shape), 1, used});
  }
  void linear(TensorGroup group, std::string name, int64_t out, int64_t in,
              int64_t num_slices = 1) {
    modules_.push_back(
        {ModuleSpec::Kind::kLinear, group, std::move(name), {out, in}, num_slices, true});
  }
  void table(TensorGroup group, std::string name, int64_t rows, int64_t width) {
    modules_.push_back({ModuleSpec::Kind::kTable, group, std::move(name), {rows, width}, 1, true});
  }
  std::vector<ModuleSpec> take() { return std::move(modules_); }

 private:
  std::vector<ModuleSpec> modules_;
};

void add_hyper_connections(const ModelConfig& config, const std::string& layer, ModuleList& list) {
  const int64_t mix = config.hc_mix_size();
  for (const char* site : {"hc_attn", "hc_ffn"}) {
    const std::string prefix = layer + site;
    list.tensor(TensorGroup::kHyperConnections, prefix + "_fn",
                {mix, config.hc_mult * config.hidden_size});
    list.tensor(TensorGroup::kHyperConnections, prefix + "_base", {mix});
    list.tensor(TensorGroup::kHyperConnections, prefix + "_scale", {3});
  }
}

void add_attention(const ModelConfig& config, int64_t layer_idx, const std::string& layer,
                   ModuleList& list) {
  constexpr TensorGroup kGroup = TensorGroup::kAttention;
  const std::string attn = layer + "attn.";
  const int64_t hidden = config.hidden_size;
  const int64_t heads_width = config.num_attention_heads * config.head_dim;
  const int64_t o_width = config.o_groups * config.o_lora_rank;
  list.tensor(kGroup, attn + "attn_sink", {config.num_attention_heads});
  list.linear(kGroup, attn + "wq_a", config.q_lora_rank, hidden);
  list.tensor(kGroup, attn + "q_norm.weight", {config.q_lora_rank});
  list.linear(kGroup, attn + "wq_b", heads_width, config.q_lora_rank);
  list.linear(kGroup, attn + "wkv", config.head_dim, hidden);
  list.tensor(kGroup, attn + "kv_norm.weight", {config.head_dim});
  list.linear(kGroup, attn + "wo_a", o_width, heads_width / config.o_groups, config.o_groups);
  list.linear(kGroup, attn + "wo_b", hidden, o_width);
  if (config.is_kv_source(layer_idx)) {
    const std::string compressor = attn + "compressor.";
    list.linear(TensorGroup::kCompressor, compressor + "wkv", config.head_dim, hidden);
    if (config.ratio(layer_idx) > 1)
      list.linear(TensorGroup::kCompressor, compressor + "wgate", config.head_dim, hidden);
    list.tensor(TensorGroup::kCompressor, compressor + "norm.weight", {config.head_dim});
    list.linear(TensorGroup::kIndexer, attn + "indexer.wk", config.index_head_dim, config.head_dim);
    list.tensor(TensorGroup::kIndexer, attn + "indexer.k_norm.weight", {config.index_head_dim});
  }
  if (config.is_index_source(layer_idx)) {
    list.linear(TensorGroup::kIndexer, attn + "indexer.wq_b",
                config.index_n_heads * config.index_head_dim, config.q_lora_rank);
    list.linear(TensorGroup::kIndexer, attn + "indexer.weights_proj", config.index_n_heads, hidden);
  }
}

void add_feed_forward(const ModelConfig& config, const std::string& layer, ModuleList& list) {
  const std::string ffn = layer + "ffn.";
  const int64_t experts = config.n_routed_experts;
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.moe_intermediate_size;
  list.tensor(TensorGroup::kGates, ffn + "gate.weight", {experts, hidden});
  list.tensor(TensorGroup::kGates, ffn + "gate.bias", {experts});
  list.tensor(TensorGroup::kGates, ffn + "gate.bias_vl", {experts}, /*used=*/false);
  const auto expert = [&](TensorGroup group, const std::string& prefix) {
    list.linear(group, prefix + "w1", inner, hidden);
    list.linear(group, prefix + "w2", hidden, inner);
    list.linear(group, prefix + "w3", inner, hidden);
  };
  for (int64_t i = 0; i < experts; ++i)
    expert(TensorGroup::kRoutedExperts, ffn + "experts." + std::to_string(i) + ".");
  expert(TensorGroup::kSharedExperts, ffn + "shared_experts.");
}

void add_engram(const ModelConfig& config, int64_t engram_idx, const std::string& layer,
                ModuleList& list) {
  const std::string engram = layer + "engram.";
  const int64_t hidden = config.hidden_size;
  list.table(TensorGroup::kEngramTables, engram + "embed",
             config.engram_num_embeddings[size_t(engram_idx)], config.engram_head_dim);
  list.linear(TensorGroup::kEngramProjections, engram + "wkv", (config.hc_mult + 1) * hidden,
              config.engram_num_columns() * config.engram_head_dim);
  for (const char* name : {"q_weight", "k_weight"})
    list.tensor(TensorGroup::kEngramProjections, engram + name, {config.hc_mult, hidden});
}

// Tensors that the checkpoint may have and the text model does not use.
std::optional<TensorGroup> ignored_group(std::string_view name) {
  for (const std::string_view prefix : {"vision.", "aligner.", "image_"})
    if (name.starts_with(prefix)) return TensorGroup::kVision;
  if (name.starts_with("mtp.")) return TensorGroup::kDraft;
  return std::nullopt;
}

bool is_plain(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBf16;
}

class Accountant {
 public:
  Accountant(const io::Checkpoint& checkpoint, Account& account)
      : checkpoint_(checkpoint), account_(account), is_known_(checkpoint.tensors().size()) {}

  void module(const ModuleSpec& spec) {
    try {
      switch (spec.kind) {
        case ModuleSpec::Kind::kTensor:
          return tensor(spec);
        case ModuleSpec::Kind::kLinear:
          return linear(spec);
        case ModuleSpec::Kind::kTable:
          return table(spec);
      }
    } catch (const Error& error) {
      add_error(error.what());
      mark_module(spec);
    }
  }

  void rest() {
    for (const io::StoredTensor& tensor : checkpoint_.tensors()) {
      account_.total.num_tensors += 1;
      account_.total.bytes += int64_t(tensor.bytes.size());
      if (is_known_[position(tensor)]) continue;
      if (const std::optional<TensorGroup> group = ignored_group(tensor.name)) {
        mark(tensor, *group, account_.ignored);
        continue;
      }
      account_.unknown.num_tensors += 1;
      account_.unknown.bytes += int64_t(tensor.bytes.size());
      add_error(io::mismatch(tensor, "a tensor of this model") + " of an unknown name");
    }
  }

 private:
  void tensor(const ModuleSpec& spec) {
    const io::StoredTensor* found = checkpoint_.find(spec.name);
    if (found == nullptr) {
      if (spec.used) missing(spec.name, spec.shape);
      return;
    }
    mark(*found, spec.group, spec.used ? account_.used : account_.ignored);
    check_shape(*found, spec.shape);
    if (!is_plain(found->dtype)) add_error(io::mismatch(*found, "F32, F16 or BF16"));
  }

  void linear(const ModuleSpec& spec) {
    const std::vector<StoredLinear> found = find_grouped_linear(
        checkpoint_, spec.name, spec.num_slices, spec.shape[0] / spec.num_slices, spec.shape[1]);
    if (found.empty()) missing(spec.name + ".weight", spec.shape);
    for (const StoredLinear& linear : found) count(spec, linear);
  }

  void table(const ModuleSpec& spec) {
    const io::StoredTensor* weight = checkpoint_.find(spec.name + ".weight");
    if (weight == nullptr) {
      missing(spec.name + ".weight", spec.shape);
      return;
    }
    mark(*weight, spec.group, account_.used);
    check_shape(*weight, spec.shape);
    if (weight->dtype != DType::kF8E4m3) {
      if (!is_plain(weight->dtype)) add_error(io::mismatch(*weight, "F8_E4M3, F32, F16 or BF16"));
      return;
    }
    const std::array<int64_t, 2> scale_shape{spec.shape[0], spec.shape[1] / kTableScaleBlock};
    const io::StoredTensor* scale = checkpoint_.find(spec.name + ".scale");
    if (scale == nullptr) {
      missing(spec.name + ".scale", scale_shape);
      return;
    }
    mark(*scale, spec.group, account_.used);
    check_shape(*scale, scale_shape);
    if (scale->dtype != DType::kF8E8m0) add_error(io::mismatch(*scale, "F8_E8M0"));
  }

  void count(const ModuleSpec& spec, const StoredLinear& found) {
    for (const io::StoredTensor* tensor :
         {found.weight, found.scale, found.trellis, found.in_scale, found.out_scale, found.marker})
      if (tensor != nullptr) mark(*tensor, spec.group, account_.used);
    std::string detail;
    if (found.format == WeightFormat::kPlain) detail = dtype_name(found.weight->dtype);
    if (found.format == WeightFormat::kExl3)
      detail = std::string(exl3::codebook_name(found.codebook)) + ", " +
               std::to_string(found.bits) + (found.bits == 1 ? " bit" : " bits");
    const auto same = [&](const FormatTotals& totals) {
      return totals.format == found.format && totals.detail == detail;
    };
    auto totals = std::find_if(account_.formats.begin(), account_.formats.end(), same);
    if (totals == account_.formats.end())
      totals = account_.formats.insert(totals, {found.format, detail, 0});
    totals->num_matrices += 1;
  }

  // A module that is broken was reported: its tensors are not unknown on top of it.
  void mark_module(const ModuleSpec& spec) {
    const auto mark_all = [&](const std::string& module) {
      for (const char* part :
           {"weight", "scale", "trellis", "suh", "svh", "su", "sv", "mul1", "mcg"})
        if (const io::StoredTensor* tensor = checkpoint_.find(module + "." + part))
          mark(*tensor, spec.group, account_.used);
    };
    mark_all(spec.name);
    for (int64_t i = 0; i < spec.num_slices && spec.num_slices > 1; ++i)
      mark_all(spec.name + ".slice." + std::to_string(i));
  }

  size_t position(const io::StoredTensor& tensor) const {
    return size_t(&tensor - checkpoint_.tensors().data());
  }

  void mark(const io::StoredTensor& tensor, TensorGroup group, TensorTotals& kind) {
    if (is_known_[position(tensor)]) return;
    is_known_[position(tensor)] = true;
    for (TensorTotals* totals : {&account_.groups[size_t(group)], &kind}) {
      totals->num_tensors += 1;
      totals->bytes += int64_t(tensor.bytes.size());
    }
  }

  void check_shape(const io::StoredTensor& tensor, std::span<const int64_t> shape) {
    if (!std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end()))
      add_error(io::mismatch(tensor, "the shape " + io::shape_text(shape)));
  }

  void missing(const std::string& name, std::span<const int64_t> shape) {
    add_error(checkpoint_.directory() + ": tensor " + json::quoted(name) + ": expected " +
              io::shape_text(shape) + ", found none");
  }

  void add_error(std::string message) {
    account_.num_errors += 1;
    if (account_.errors.size() < Account::kMaxErrors) account_.errors.push_back(std::move(message));
  }

  const io::Checkpoint& checkpoint_;
  Account& account_;
  std::vector<bool> is_known_;  // by position in checkpoint_.tensors()
};

}  // namespace

const char* tensor_group_name(TensorGroup group) {
  constexpr std::array<const char*, kNumTensorGroups> kNames{"routed experts", "engram tables",
                                                             "attention",      "embed and head",
                                                             "shared experts", "vision",
                                                             "draft layers",   "engram projections",
                                                             "gates",          "hyper-connections",
                                                             "indexer",        "compressor",
                                                             "norms"};
  return kNames[size_t(group)];
}

std::vector<ModuleSpec> model_modules(const ModelConfig& config) {
  ModuleList list;
  list.tensor(TensorGroup::kEmbeddings, "embed.weight", {config.vocab_size, config.hidden_size});
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    list.tensor(TensorGroup::kNorms, layer + "attn_norm.weight", {config.hidden_size});
    list.tensor(TensorGroup::kNorms, layer + "ffn_norm.weight", {config.hidden_size});
    add_hyper_connections(config, layer, list);
    add_attention(config, i, layer, list);
    add_feed_forward(config, layer, list);
    if (const int64_t engram_idx = config.engram_idx(i); engram_idx >= 0)
      add_engram(config, engram_idx, layer, list);
  }
  list.tensor(TensorGroup::kNorms, "norm.weight", {config.hidden_size});
  list.linear(TensorGroup::kEmbeddings, "head", config.vocab_size, config.hidden_size);
  return list.take();
}

Account account(const io::Checkpoint& checkpoint, const ModelConfig& config) {
  Account result;
  Accountant accountant(checkpoint, result);
  for (const ModuleSpec& spec : model_modules(config)) accountant.module(spec);
  accountant.rest();
  return result;
}

void require_complete(const Account& account, const io::Checkpoint& checkpoint) {
  if (account.ok()) return;
  std::string message = checkpoint.directory() + ": " + std::to_string(account.num_errors) +
                        (account.num_errors == 1 ? " tensor does" : " tensors do") +
                        " not fit the model";
  for (const std::string& error : account.errors) message += "\n  " + error;
  if (account.num_errors > int64_t(account.errors.size())) message += "\n  ...";
  throw Error(ErrorCode::kDataCorrupt, message);
}

}  // namespace onecard::model
