#include "make_tiny_model/tiny_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "io/file.h"
#include "io/safetensors_writer.h"
#include "model/tensor_table.h"
#include "quant/exl3/codebook.h"
#include "tensor/dtype.h"

namespace onecard::tiny {
namespace {

using io::TensorSpec;
using model::ModelConfig;
using model::ModuleSpec;
using model::TensorGroup;

constexpr int64_t kBlock = 32;  // of FP8 and FP4 scales

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

uint64_t name_hash(std::string_view name, uint64_t seed) {
  if (seed == 0) return fnv1a(name);
  return fnv1a(std::to_string(seed) + ":" + std::string(name));
}

// The idx-th output of splitmix64 started at `start`.
uint64_t splitmix(uint64_t start, uint64_t idx) {
  uint64_t z = start + (idx + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return z ^ z >> 31;
}

bool ends_with(std::string_view name, std::string_view end) { return name.ends_with(end); }

bool contains(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

// The smallest power of two >= x > 0.
float pow2_ceil(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);
  return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

uint8_t e8m0_of(float scale) { return uint8_t(std::ilogb(scale) + 127); }

float largest(std::span<const float> values) {
  float amax = 0;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  return amax;
}

// The scale of a block whose largest magnitude is `amax`, for a grid that ends at `grid_max`.
float block_scale(float amax, float grid_max) {
  return pow2_ceil(std::max(amax, 1e-30f) / grid_max);
}

uint8_t to_e4m3(float value, float scale) {
  return f32_to_e4m3(std::clamp(value / scale, -448.0f, 448.0f));
}

std::span<const std::byte> bytes_of(const auto& values) { return std::as_bytes(std::span(values)); }

// A matrix [rows, cols] of weights, quantised with one scale a tile of tile_rows x 32.
struct Quantised {
  std::vector<uint8_t> codes;  // one a weight
  std::vector<uint8_t> scales;
};

Quantised quantise(std::span<const float> weights, int64_t rows, int64_t cols, int64_t tile_rows,
                   float grid_max, uint8_t (*encode)(float value, float scale)) {
  Quantised out;
  out.codes.resize(size_t(rows * cols));
  const int64_t tiles_per_row = ceil_div(cols, kBlock);
  out.scales.resize(size_t(ceil_div(rows, tile_rows) * tiles_per_row));
  for (int64_t tile = 0; tile < int64_t(out.scales.size()); ++tile) {
    const int64_t row_begin = tile / tiles_per_row * tile_rows;
    const int64_t row_end = std::min(rows, row_begin + tile_rows);
    const int64_t begin = tile % tiles_per_row * kBlock;
    const int64_t end = std::min(cols, begin + kBlock);
    float amax = 0;
    for (int64_t row = row_begin; row < row_end; ++row)
      amax =
          std::max(amax, largest(weights.subspan(size_t(row * cols + begin), size_t(end - begin))));
    const float scale = block_scale(amax, grid_max);
    out.scales[size_t(tile)] = e8m0_of(scale);
    for (int64_t row = row_begin; row < row_end; ++row)
      for (int64_t col = begin; col < end; ++col)
        out.codes[size_t(row * cols + col)] = encode(weights[size_t(row * cols + col)], scale);
  }
  return out;
}

uint8_t to_e2m1(float value, float scale) {
  return f32_to_e2m1(std::clamp(value / scale, -6.0f, 6.0f));
}

// Two codes a byte, the even index in the low nibble.
std::vector<uint8_t> pack_nibbles(const std::vector<uint8_t>& codes) {
  std::vector<uint8_t> packed(codes.size() / 2);
  for (size_t i = 0; i < packed.size(); ++i)
    packed[i] = uint8_t(codes[2 * i] | codes[2 * i + 1] << 4);
  return packed;
}

// One module: which tensors it becomes, and their bytes.
class ModuleWriter {
 public:
  ModuleWriter(const ModuleSpec& module, const TinyOptions& options)
      : module_(module), options_(options) {}

  std::vector<TensorSpec> specs() const {
    switch (module_.kind) {
      case ModuleSpec::Kind::kTensor:
        return {{module_.name, plain_dtype(), module_.shape}};
      case ModuleSpec::Kind::kTable:
        return table_specs();
      case ModuleSpec::Kind::kLinear:
        break;
    }
    std::vector<TensorSpec> list;
    for (int64_t i = 0; i < num_parts(); ++i) add_linear_specs(part_name(i), part_rows(), list);
    return list;
  }

  void write(io::SafetensorsWriter& writer) const {
    if (module_.kind == ModuleSpec::Kind::kLinear && format() == model::WeightFormat::kExl3) {
      for (int64_t i = 0; i < num_parts(); ++i) write_exl3(part_name(i), writer);
      return;
    }
    const std::string name =
        module_.kind == ModuleSpec::Kind::kTensor ? module_.name : module_.name + ".weight";
    int64_t size = 1;
    for (const int64_t extent : module_.shape) size *= extent;
    std::vector<float> weights(size_t(size), 0.0f);
    fill_weights(name, module_.shape.back(), options_.seed, weights);
    if (module_.kind == ModuleSpec::Kind::kTensor || format() == model::WeightFormat::kPlain)
      return write_plain(name, weights, writer);
    write_quantised(weights, writer);
  }

 private:
  DType plain_dtype() const {
    const std::string& name = module_.name;
    const bool is_f32 = options_.storage == Storage::kF32 || contains(name, ".hc_") ||
                        ends_with(name, "attn_sink") || contains(name, "gate.bias");
    return is_f32 ? DType::kF32 : DType::kBf16;
  }

  model::WeightFormat format() const {
    using model::WeightFormat;
    const std::string& name = module_.name;
    const bool is_table = module_.kind == ModuleSpec::Kind::kTable;
    switch (options_.storage) {
      case Storage::kF32:
      case Storage::kBf16:
        return WeightFormat::kPlain;
      case Storage::kExl3:
        if (is_table) return WeightFormat::kFp8;
        return ends_with(name, "weights_proj") ? WeightFormat::kPlain : WeightFormat::kExl3;
      case Storage::kFp8:
        if (module_.group == TensorGroup::kRoutedExperts) return WeightFormat::kFp4;
        if (name == "head" || contains(name, ".compressor.") || ends_with(name, "indexer.wk") ||
            ends_with(name, "weights_proj"))
          return WeightFormat::kPlain;
        return WeightFormat::kFp8;
    }
    return WeightFormat::kPlain;
  }

  int bits() const {
    return module_.group == TensorGroup::kRoutedExperts ? options_.expert_bits
                                                        : options_.dense_bits;
  }

  int64_t num_parts() const {
    return format() == model::WeightFormat::kExl3 ? module_.num_slices : 1;
  }
  int64_t part_rows() const { return module_.shape[0] / num_parts(); }
  std::string part_name(int64_t part_idx) const {
    return num_parts() == 1 ? module_.name : module_.name + ".slice." + std::to_string(part_idx);
  }

  std::vector<TensorSpec> table_specs() const {
    const std::string weight = module_.name + ".weight";
    if (format() == model::WeightFormat::kPlain) return {{weight, plain_dtype(), module_.shape}};
    if (module_.shape[1] % kBlock != 0) refuse("FP8 with a width that is a multiple of 32");
    return {
        {weight, DType::kF8E4m3, module_.shape},
        {module_.name + ".scale", DType::kF8E8m0, {module_.shape[0], module_.shape[1] / kBlock}}};
  }

  void add_linear_specs(const std::string& name, int64_t rows,
                        std::vector<TensorSpec>& list) const {
    const int64_t cols = module_.shape[1];
    switch (format()) {
      case model::WeightFormat::kPlain:
        list.push_back({name + ".weight", plain_dtype(), {rows, cols}});
        return;
      case model::WeightFormat::kFp8:
        list.push_back({name + ".weight", DType::kF8E4m3, {rows, cols}});
        list.push_back(
            {name + ".scale", DType::kF8E8m0, {ceil_div(rows, kBlock), ceil_div(cols, kBlock)}});
        return;
      case model::WeightFormat::kFp4:
        if (cols % 2 != 0) refuse("FP4 with an even number of inputs");
        list.push_back({name + ".weight", DType::kI8, {rows, cols / 2}});
        list.push_back({name + ".scale", DType::kF8E8m0, {rows, ceil_div(cols, kBlock)}});
        return;
      case model::WeightFormat::kExl3:
        if (rows % exl3::kGroupDim != 0 || cols % exl3::kGroupDim != 0)
          refuse("EXL3 with dimensions that are multiples of 128");
        list.push_back({name + ".suh", DType::kF16, {cols}});
        list.push_back({name + ".svh", DType::kF16, {rows}});
        list.push_back({name + ".mul1", DType::kI32, {}});
        list.push_back({name + ".trellis",
                        DType::kI16,
                        {cols / exl3::kTileDim, rows / exl3::kTileDim, 16 * int64_t(bits())}});
    }
  }

  [[noreturn]] void refuse(const std::string& expected) const {
    std::string shape;
    for (const int64_t extent : module_.shape) {
      if (!shape.empty()) shape += " x ";
      shape += std::to_string(extent);
    }
    throw Error(ErrorCode::kInvalidArgument,
                "storing " + module_.name + ": expected " + expected + ", found " + shape);
  }

  void write_plain(const std::string& name, std::span<const float> weights,
                   io::SafetensorsWriter& writer) const {
    if (plain_dtype() == DType::kF32) return writer.append(name, std::as_bytes(weights));
    std::vector<uint16_t> rounded(weights.size());
    std::transform(weights.begin(), weights.end(), rounded.begin(), f32_to_bf16);
    writer.append(name, bytes_of(rounded));
  }

  void write_quantised(std::span<const float> weights, io::SafetensorsWriter& writer) const {
    const int64_t rows = module_.shape[0];
    const int64_t cols = module_.shape[1];
    if (format() == model::WeightFormat::kFp4) {
      const Quantised quantised = quantise(weights, rows, cols, 1, 6.0f, to_e2m1);
      writer.append(module_.name + ".weight", bytes_of(pack_nibbles(quantised.codes)));
      writer.append(module_.name + ".scale", bytes_of(quantised.scales));
      return;
    }
    const int64_t tile_rows = module_.kind == ModuleSpec::Kind::kTable ? 1 : kBlock;
    const Quantised quantised = quantise(weights, rows, cols, tile_rows, 448.0f, to_e4m3);
    writer.append(module_.name + ".weight", bytes_of(quantised.codes));
    writer.append(module_.name + ".scale", bytes_of(quantised.scales));
  }

  // Random words are a valid trellis. MUL1 values have a deviation of 1, so suh alone brings the
  // matrix to the deviation 1/sqrt(in) of the plain weights; both carry random signs.
  void write_exl3(const std::string& name, io::SafetensorsWriter& writer) const {
    const int64_t cols = module_.shape[1];
    const auto scales = [&](const std::string& part, int64_t size, float magnitude) {
      const uint64_t hash = name_hash(name + part, options_.seed);
      std::vector<uint16_t> values(size_t(size), 0);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = f32_to_f16((splitmix(hash, i) >> 63) != 0 ? -magnitude : magnitude);
      writer.append(name + part, bytes_of(values));
    };
    scales(".suh", cols, 1 / std::sqrt(float(cols)));
    scales(".svh", part_rows(), 1);
    const std::array<uint32_t, 1> marker{exl3::kMul1Multiplier};
    writer.append(name + ".mul1", bytes_of(marker));
    const uint64_t hash = name_hash(name + ".trellis", options_.seed);
    std::vector<uint64_t> words(size_t(cols * part_rows() * bits() / 64));
    for (size_t i = 0; i < words.size(); ++i) words[i] = splitmix(hash, i);
    writer.append(name + ".trellis", bytes_of(words));
  }

  const ModuleSpec& module_;
  const TinyOptions& options_;
};

bool is_prime(int64_t n) {
  if (n < 2) return false;
  for (int64_t d = 2; d * d <= n; ++d)
    if (n % d == 0) return false;
  return true;
}

// All mechanisms in ten layers; every fake quantiser acts.
ModelConfig t_q() {
  ModelConfig config;
  config.vocab_size = 96;
  config.hidden_size = 64;
  config.num_hidden_layers = 10;
  config.num_attention_heads = 4;
  config.head_dim = 64;
  config.qk_rope_head_dim = 16;
  config.q_lora_rank = 32;
  config.o_groups = 2;
  config.o_lora_rank = 16;
  config.rope_scaling.original_max_position_embeddings = 64;
  config.max_position_embeddings = 1024;
  config.sliding_window = 8;
  config.compress_ratios = {0, 0, 2, 2, 2, 2, 1, 1, 1, 1};
  config.kv_source_layer_ids = {2, 4, 6};
  config.index_source_layer_ids = {2, 4, 6, 8};
  config.candidate_source_layer_id = 6;
  config.candidate_topk_blocks = 3;
  config.candidate_block_size = 4;
  config.index_n_heads = 8;
  config.index_head_dim = 32;
  config.index_topk = 6;
  config.moe_intermediate_size = 32;
  config.n_routed_experts = 8;
  config.num_experts_per_tok = 2;
  config.engram_layer_ids = {1, 4};
  config.engram_vocab_size = 64;
  config.engram_n_heads = 2;
  config.engram_head_dim = 32;
  config.engram_compressed_vocab_size = 50;
  config.engram_num_embeddings = engram_rows(config);
  config.num_nextn_predict_layers = 0;
  return config;
}

// Shapes that every fake quantiser skips.
ModelConfig t_nq() {
  ModelConfig config = t_q();
  config.head_dim = 40;
  config.qk_rope_head_dim = 10;
  config.index_head_dim = 24;
  return config;
}

// T-NQ where clamps, epsilons and the number of Sinkhorn iterations bind.
ModelConfig t_nq2() {
  ModelConfig config = t_nq();
  config.swiglu_limit = 0.75;
  config.hc_sinkhorn_iters = 2;
  config.hc_eps = 0.01;
  config.rms_norm_eps = 0.05;
  config.routed_scaling_factor = 2;
  return config;
}

// Every matrix can be EXL3, and there are enough experts to have some in each tier.
ModelConfig tiers() {
  ModelConfig config = t_q();
  config.vocab_size = 512;
  config.hidden_size = 512;
  config.num_hidden_layers = 6;
  config.head_dim = 128;
  config.qk_rope_head_dim = 32;
  config.q_lora_rank = 256;
  config.o_lora_rank = 128;
  config.sliding_window = 32;
  config.compress_ratios = {0, 2, 2, 1, 1, 1};
  config.kv_source_layer_ids = {1, 3};
  config.index_source_layer_ids = {1, 3, 4};
  config.candidate_source_layer_id = 3;
  config.candidate_topk_blocks = 16;
  config.candidate_block_size = 8;
  config.index_n_heads = 4;
  config.index_head_dim = 128;
  config.index_topk = 32;
  config.moe_intermediate_size = 512;
  config.n_routed_experts = 32;
  config.num_experts_per_tok = 6;
  config.engram_layer_ids = {1};
  config.engram_vocab_size = 1000;
  config.engram_head_dim = 64;
  config.engram_compressed_vocab_size = 400;
  config.engram_num_embeddings = engram_rows(config);
  return config;
}

void write_token_map(const std::string& directory, const ModelConfig& config) {
  std::string bytes;
  for (int64_t token = 0; token < config.vocab_size; ++token) {
    const auto id = uint32_t(7 * token % config.engram_compressed_vocab_size);
    for (int shift = 0; shift < 32; shift += 8) bytes += char(id >> shift & 0xff);
  }
  io::write_file_atomically((std::filesystem::path(directory) / "engram_token_map.i32").string(),
                            bytes);
}

}  // namespace

std::vector<std::string> preset_names() { return {"t-q", "t-nq", "t-qm", "t-nq2", "tiers"}; }

ModelConfig preset_config(std::string_view name) {
  if (name == "t-q" || name == "t-qm") return t_q();
  if (name == "t-nq") return t_nq();
  if (name == "t-nq2") return t_nq2();
  if (name == "tiers") return tiers();
  throw Error(ErrorCode::kNotFound,
              "preset: expected t-q, t-nq, t-qm, t-nq2 or tiers, found " + json::quoted(name));
}

ModelConfig with_members(const ModelConfig& config,
                         std::span<const std::pair<std::string, std::string>> members) {
  json::Value root = json::parse(model::model_config_json(config));
  json::Value text_config = *root.find("text_config");
  bool rows_given = false;
  for (const auto& [name, value] : members) {
    text_config.set(name, json::parse(value));
    // The other spelling may not disagree.
    if (name == "engram_pad_token_id") text_config.set("engram_pad_id", json::parse(value));
    rows_given = rows_given || name == "engram_num_embeddings";
  }
  // Right in number only; the rows follow once the members are known to be sound.
  if (!rows_given && text_config.find("engram_layer_ids")->is_array())
    text_config.set(
        "engram_num_embeddings",
        json::Value::array(std::vector<json::Value>(
            text_config.find("engram_layer_ids")->items().size(), json::Value::integer(1))));
  root.set("text_config", std::move(text_config));
  ModelConfig changed = model::parse_model_config(json::dump(root), "members");
  if (!rows_given) changed.engram_num_embeddings = engram_rows(changed);
  return changed;
}

std::vector<int64_t> engram_rows(const ModelConfig& config) {
  std::vector<int64_t> rows;
  int64_t prime = config.engram_vocab_size - 1;
  for (size_t layer = 0; layer < config.engram_layer_ids.size(); ++layer) {
    int64_t sum = 0;
    for (int64_t column = 0; column < config.engram_num_columns(); ++column) {
      do ++prime;
      while (!is_prime(prime));
      sum += prime;
    }
    rows.push_back(sum);
  }
  return rows;
}

std::pair<double, double> weight_range(std::string_view name, int64_t in) {
  if (ends_with(name, "norm.weight")) return {0.1, 1};
  if (ends_with(name, "_fn")) return {0.05, 0};
  if (ends_with(name, "_base")) return {0.5, 0};
  if (ends_with(name, "_scale")) return {0.2, 1};
  if (ends_with(name, "embed.weight") || ends_with(name, "attn_sink")) return {1, 0};
  if (contains(name, "gate.bias")) return {0.05, 0};
  if (ends_with(name, "q_weight") || ends_with(name, "k_weight")) return {0.2, 1};
  return {std::sqrt(3.0 / double(in)), 0};
}

void fill_weights(std::string_view name, int64_t in, uint64_t seed, std::span<float> out) {
  const auto [a, b] = weight_range(name, in);
  const uint64_t hash = name_hash(name, seed);
  for (size_t i = 0; i < out.size(); ++i) {
    const double u = double(splitmix(hash, i) >> 40) / double(1 << 24);
    out[i] = float((2 * u - 1) * a + b);
  }
}

void write_checkpoint(const std::string& directory, const ModelConfig& config,
                      const TinyOptions& options) {
  model::validate(config, "tiny model");
  ModelConfig stated = config;
  if (options.storage == Storage::kFp8)
    stated.quantization = {"fp8", "fp4", "ue8m0", {kBlock, kBlock}, 0};
  if (options.storage == Storage::kExl3) {
    stated.quantization.quant_method = "exl3";
    stated.quantization.bits = options.expert_bits;
  }
  const std::vector<ModuleSpec> modules = model::model_modules(config);
  std::vector<TensorSpec> specs;
  for (const ModuleSpec& module : modules)
    for (TensorSpec& spec : ModuleWriter(module, options).specs()) specs.push_back(std::move(spec));
  io::SafetensorsWriter writer(directory, io::plan_shards(std::move(specs), options.shard_bytes));
  for (const ModuleSpec& module : modules) ModuleWriter(module, options).write(writer);
  writer.finish();
  io::write_file_atomically((std::filesystem::path(directory) / "config.json").string(),
                            model::model_config_json(stated));
  write_token_map(directory, config);
}

}  // namespace onecard::tiny
