// The model's configuration: every number of the architecture, read from config.json (nested, as
// published) or from the flat inference/config.json. Untrusted text; validated once, here, so that
// nothing later has to doubt it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace onecard::model {

/// How a layer attends beyond its sliding window.
enum class LayerMode {
  kSwa,      // it does not
  kFull,     // makes global KV and index keys, selects among all of them
  kReindex,  // selects anew among the keys of its source (inside the candidates, where there are)
  kReuse,    // attends to what its index source selected
};
const char* layer_mode_name(LayerMode mode);  // "swa", "full", "reindex", "reuse"

/// YaRN. factor 1 leaves the frequencies as they are.
struct RopeScaling {
  double factor = 16;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_max_position_embeddings = 65536;
};

/// quantization_config, as far as something reads it. Informative: the format of a matrix is read
/// from its tensors.
struct QuantizationConfig {
  std::string quant_method;  // "fp8", "exl3"; empty: none given
  std::string expert_dtype;  // "fp4"
  std::string scale_fmt;     // "ue8m0"
  std::vector<int64_t> weight_block_size;
  double bits = 0;  // exl3: average, rounded
};

/// Names and defaults are those of the published config.json.
struct ModelConfig {
  int64_t vocab_size = 129280;
  int64_t hidden_size = 5120;
  int64_t num_hidden_layers = 40;
  int64_t num_attention_heads = 64;
  int64_t head_dim = 512;
  int64_t qk_rope_head_dim = 64;
  int64_t q_lora_rank = 1280;
  int64_t o_groups = 8;
  int64_t o_lora_rank = 1024;
  double rope_theta = 10000;
  double compress_rope_theta = 160000;
  RopeScaling rope_scaling;
  int64_t max_position_embeddings = 1048576;

  int64_t sliding_window = 128;
  std::vector<int64_t> compress_ratios;         // one a layer: 0, 1 or 2
  std::vector<int64_t> kv_source_layer_ids;     // ascending
  std::vector<int64_t> index_source_layer_ids;  // ascending; holds every kv source
  int64_t candidate_source_layer_id = -1;       // -1: none
  int64_t candidate_topk_blocks = 2048;
  int64_t candidate_block_size = 8;
  int64_t index_n_heads = 32;
  int64_t index_head_dim = 128;
  int64_t index_topk = 512;

  int64_t moe_intermediate_size = 2304;
  int64_t n_routed_experts = 384;
  int64_t n_shared_experts = 1;
  int64_t num_experts_per_tok = 6;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.5;
  double swiglu_limit = 10;
  double gate_temp = 1;

  int64_t hc_mult = 4;
  int64_t hc_sinkhorn_iters = 20;
  double hc_eps = 1e-6;
  double rms_norm_eps = 1e-20;

  std::vector<int64_t> engram_layer_ids;       // ascending; empty: no engram
  std::vector<int64_t> engram_num_embeddings;  // rows of each table
  int64_t engram_max_ngram_size = 4;
  int64_t engram_vocab_size = 16000000;
  int64_t engram_n_heads = 8;
  int64_t engram_head_dim = 256;
  int64_t engram_pad_token_id = 2;
  int64_t engram_compressed_vocab_size = 99092;

  int64_t num_nextn_predict_layers = 3;
  int64_t dspark_n_routed_experts = 128;
  int64_t dspark_markov_rank = 256;
  std::vector<int64_t> dspark_target_layer_ids;

  int64_t bos_token_id = 0;
  int64_t eos_token_id = 1;
  int64_t pad_token_id = 2;
  int64_t image_token_id = -1;  // -1: none

  QuantizationConfig quantization;

  // What follows from the lists. Layers are 0-based; `layer_idx` is in [0, num_hidden_layers).
  LayerMode mode(int64_t layer_idx) const;
  /// 0 (window only), 1 or 2 tokens a group.
  int64_t ratio(int64_t layer_idx) const { return compress_ratios[layer_idx]; }
  bool is_kv_source(int64_t layer_idx) const;
  bool is_index_source(int64_t layer_idx) const;
  bool is_candidate_source(int64_t layer_idx) const {
    return layer_idx == candidate_source_layer_id;
  }
  /// A reindex layer that selects inside the candidates of candidate_source_layer_id.
  bool uses_candidates(int64_t layer_idx) const;
  /// The layer whose global KV this one reads; -1 when it has none.
  int64_t source(int64_t layer_idx) const;
  /// The layer whose selection this one uses; -1 when it has none.
  int64_t index_source(int64_t layer_idx) const;
  /// Position in engram_layer_ids; -1 when the layer has no engram.
  int64_t engram_idx(int64_t layer_idx) const;
  /// The first decoder layer: the last kv source. Layers from here on make no global KV but this
  /// one's. num_hidden_layers when there is no kv source at all.
  int64_t decoder_begin() const;

  /// Width of the streams' mixing: (2 + hc_mult) * hc_mult.
  int64_t hc_mix_size() const { return (2 + hc_mult) * hc_mult; }
  /// Rows looked up a token and engram layer: heads of every order.
  int64_t engram_num_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }
};

/// The configuration in `text`, nested or flat; `file` is the name that errors show. Members that
/// are not known are ignored; those that would change the computation and are not supported
/// (another activation, tied embeddings, expert groups) are refused. Throws kInvalidArgument or
/// kUnsupported, naming file, field, expected and found.
ModelConfig parse_model_config(std::string_view text, std::string_view file);

/// From `directory`/config.json, or else `directory`/inference/config.json.
ModelConfig load_model_config(const std::string& directory);

/// The configuration as a nested config.json.
std::string model_config_json(const ModelConfig& config);

/// DeepSeek-V4.1-Flash as released.
ModelConfig deepseek_v41_flash_config();

/// Throws what parse_model_config throws; for configurations made in code.
void validate(const ModelConfig& config, std::string_view file);

}  // namespace onecard::model
