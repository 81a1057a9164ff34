#include "model/tiny_checkpoint.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "io/checkpoint.h"
#include "io/file.h"
#include "io/safetensors_writer.h"
#include "support/temp_dir.h"

namespace onecard::test {
namespace {

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  double amplitude = 1;
  double offset = 0;
};

std::vector<Tensor> tensors(const model::ModelConfig& c) {
  std::vector<Tensor> all;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, double amplitude,
                       double offset) {
    all.push_back({name, std::move(shape), amplitude, offset});
  };
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    add(name + ".weight", {out, in}, std::sqrt(3.0 / double(in)), 0);
  };
  const auto norm = [&](const std::string& name, int64_t size) {
    add(name + ".weight", {size}, 0.1, 1);
  };
  const int64_t heads = c.num_attention_heads * c.head_dim;
  add("embed.weight", {c.vocab_size, c.hidden_size}, 1, 0);
  linear("head", c.vocab_size, c.hidden_size);
  norm("norm", c.hidden_size);
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const std::string p = "layers." + std::to_string(l) + ".";
    for (const char* site : {"attn", "ffn"}) {
      norm(p + site + "_norm", c.hidden_size);
      const std::string hc = p + "hc_" + site;
      add(hc + "_fn", {c.hc_mix_size(), c.hc_mult * c.hidden_size}, 0.05, 0);
      add(hc + "_base", {c.hc_mix_size()}, 0.5, 0);
      add(hc + "_scale", {3}, 0.2, 1);
    }
    const std::string a = p + "attn.";
    add(a + "attn_sink", {c.num_attention_heads}, 1, 0);
    linear(a + "wq_a", c.q_lora_rank, c.hidden_size);
    norm(a + "q_norm", c.q_lora_rank);
    linear(a + "wq_b", heads, c.q_lora_rank);
    linear(a + "wkv", c.head_dim, c.hidden_size);
    norm(a + "kv_norm", c.head_dim);
    linear(a + "wo_a", c.o_groups * c.o_lora_rank, heads / c.o_groups);
    linear(a + "wo_b", c.hidden_size, c.o_groups * c.o_lora_rank);
    if (c.is_kv_source(l)) {
      linear(a + "compressor.wkv", c.head_dim, c.hidden_size);
      if (c.ratio(l) > 1) linear(a + "compressor.wgate", c.head_dim, c.hidden_size);
      norm(a + "compressor.norm", c.head_dim);
      linear(a + "indexer.wk", c.index_head_dim, c.head_dim);
      norm(a + "indexer.k_norm", c.index_head_dim);
    }
    if (c.is_index_source(l)) {
      linear(a + "indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank);
      linear(a + "indexer.weights_proj", c.index_n_heads, c.hidden_size);
    }
    linear(p + "ffn.gate", c.n_routed_experts, c.hidden_size);
    add(p + "ffn.gate.bias", {c.n_routed_experts}, 0.05, 0);
    for (int64_t e = 0; e <= c.n_routed_experts; ++e) {
      const std::string x =
          p + "ffn." +
          (e < c.n_routed_experts ? "experts." + std::to_string(e) : std::string("shared_experts"));
      linear(x + ".w1", c.moe_intermediate_size, c.hidden_size);
      linear(x + ".w3", c.moe_intermediate_size, c.hidden_size);
      linear(x + ".w2", c.hidden_size, c.moe_intermediate_size);
    }
    if (const int64_t e = c.engram_idx(l); e >= 0) {
      const std::string g = p + "engram.";
      add(g + "embed.weight", {c.engram_num_embeddings[size_t(e)], c.engram_head_dim}, 1, 0);
      linear(g + "wkv", (c.hc_mult + 1) * c.hidden_size,
             c.engram_num_columns() * c.engram_head_dim);
      add(g + "q_weight", {c.hc_mult, c.hidden_size}, 0.2, 1);
      add(g + "k_weight", {c.hc_mult, c.hidden_size}, 0.2, 1);
    }
  }
  return all;
}

uint64_t fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ uint8_t(c)) * 0x100000001b3;
  return hash;
}

double uniform(uint64_t hash, int64_t idx) {
  uint64_t z = hash + uint64_t(idx + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  z ^= z >> 31;
  return 2 * (double(z >> 40) / 16777216.0) - 1;
}

}  // namespace

double hashed_uniform(const std::string& name, int64_t idx) { return uniform(fnv1a(name), idx); }

void write_tiny_checkpoint(const std::string& directory, const std::string& text_config_json) {
  const std::string config_json =
      "{\"architectures\":[\"DeepseekV41ForCausalLM\"],\"model_type\":\"deepseek_v41\","
      "\"text_config\":" +
      text_config_json + "}";
  const model::ModelConfig config = model::parse_model_config(config_json, "config.json");
  const std::vector<Tensor> all = tensors(config);
  io::ShardSpec shard{"model.safetensors", {}};
  for (const Tensor& tensor : all)
    shard.tensors.push_back({tensor.name, DType::kF32, tensor.shape});
  io::SafetensorsWriter writer(directory, {shard});
  for (const Tensor& tensor : all) {
    int64_t size = 1;
    for (const int64_t dim : tensor.shape) size *= dim;
    std::vector<float> values(static_cast<size_t>(size));
    const uint64_t hash = fnv1a(tensor.name);
    for (int64_t i = 0; i < size; ++i)
      values[size_t(i)] = float(uniform(hash, i) * tensor.amplitude + tensor.offset);
    writer.append(tensor.name, std::as_bytes(std::span(values)));
  }
  writer.finish();
  std::string map;
  for (int64_t id = 0; id < config.vocab_size; ++id) {
    const auto compressed = int32_t(7 * id % config.engram_compressed_vocab_size);
    map.append(reinterpret_cast<const char*>(&compressed), sizeof(compressed));
  }
  io::write_file_atomically(directory + "/engram_token_map.i32", map);
  io::write_file_atomically(directory + "/config.json", config_json);
}

struct TinyModel::Directory {
  TempDir dir;
};

TinyModel::TinyModel(const std::string& text_config_json)
    : directory_(std::make_unique<Directory>()) {
  write_tiny_checkpoint(directory(), text_config_json);
  model_ =
      model::Model::load(io::Checkpoint::open(directory()), model::load_model_config(directory()));
}
TinyModel::~TinyModel() = default;
TinyModel::TinyModel(TinyModel&&) noexcept = default;

const std::string& TinyModel::directory() const { return directory_->dir.path(); }

}  // namespace onecard::test
