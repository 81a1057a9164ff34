// model/config: any bytes either parse or throw Error; what parses is a model whose layers are
// consistent, and survives being written and read again.
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/config.h"

namespace {

using onecard::model::LayerMode;
using onecard::model::ModelConfig;

void check_layers(const ModelConfig& config, const std::vector<int64_t>& layers) {
  for (size_t i = 0; i < layers.size(); ++i)
    if (layers[i] < 0 || layers[i] >= config.num_hidden_layers ||
        (i > 0 && layers[i] <= layers[i - 1]))
      std::abort();
}

void check(const ModelConfig& config) {
  check_layers(config, config.kv_source_layer_ids);
  check_layers(config, config.index_source_layer_ids);
  check_layers(config, config.engram_layer_ids);
  if (config.num_attention_heads % config.o_groups != 0 || config.qk_rope_head_dim % 2 != 0 ||
      config.qk_rope_head_dim > config.head_dim || config.num_experts_per_tok < 1 ||
      config.num_experts_per_tok > config.n_routed_experts ||
      config.decoder_begin() > config.num_hidden_layers ||
      int64_t(config.compress_ratios.size()) != config.num_hidden_layers ||
      config.engram_layer_ids.size() != config.engram_num_embeddings.size())
    std::abort();
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const int64_t source = config.source(layer);
    const int64_t index_source = config.index_source(layer);
    if (config.mode(layer) == LayerMode::kSwa) {
      if (source != -1 || index_source != -1) std::abort();
      continue;
    }
    if (source < 0 || source > index_source || index_source > layer ||
        config.mode(source) != LayerMode::kFull || config.ratio(source) != config.ratio(layer) ||
        config.ratio(layer) < 1 || config.ratio(layer) > 2)
      std::abort();
    if (config.uses_candidates(layer) && source != config.candidate_source_layer_id) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ModelConfig config;
  try {
    config = onecard::model::parse_model_config(text, "f");
  } catch (const onecard::Error& error) {
    if (error.code() != onecard::ErrorCode::kInvalidArgument &&
        error.code() != onecard::ErrorCode::kUnsupported)
      std::abort();
    return 0;
  }
  check(config);
  const std::string once = onecard::model::model_config_json(config);
  if (onecard::model::model_config_json(onecard::model::parse_model_config(once, "g")) != once)
    std::abort();
  return 0;
}
