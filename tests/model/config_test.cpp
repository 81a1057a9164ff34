#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "base/json.h"

namespace onecard::model {
namespace {

using json::Value;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// As published, written out by hand; lists shortened to what a reader needs to see.
constexpr const char* kPublished = R"({
  "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
  "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 129264,
  "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
    "weight_block_size": [32, 32], "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
  "text_config": {
    "model_type": "deepseek_v41_text", "vocab_size": 129280, "hidden_size": 5120,
    "num_hidden_layers": 40, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
    "qk_rope_head_dim": 64, "q_lora_rank": 1280, "o_groups": 8, "o_lora_rank": 1024,
    "attention_bias": false, "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
      "original_max_position_embeddings": 65536},
    "max_position_embeddings": 1048576, "moe_intermediate_size": 2304, "n_routed_experts": 384,
    "n_shared_experts": 1, "num_experts_per_tok": 6, "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 1.5,
    "hidden_act": "silu", "swiglu_limit": 10.0, "tie_word_embeddings": false,
    "sliding_window": 128,
    "compress_ratios": [0,0, 2,2,2,2,2,2, 2,2,2,2,2,2, 2,2,2,2,2,2,
                        1,1,1,1,1,1,1,1,1,1, 1,1,1,1,1,1,1,1,1,1, 0,0,0],
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048, "candidate_block_size": 8,
    "index_n_heads": 32, "index_head_dim": 128, "index_topk": 512,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-20,
    "engram_layer_ids": [1, 14], "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4, "engram_vocab_size": 16000000, "engram_n_heads": 8,
    "engram_head_dim": 256, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 99092,
    "num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": 128799,
    "dspark_target_layer_ids": [37, 38, 39], "dspark_markov_rank": 256,
    "dspark_n_routed_experts": 128, "dspark_num_experts_per_tok": 3,
    "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": true},
  "vision_config": {"model_type": "deepseek_v41_vision", "max_wh_ratio": null},
  "transformers_version": "5.6.0"})";

constexpr const char* kFlat = R"({
  "vocab_size": 96, "dim": 64, "n_layers": 4, "n_heads": 4, "head_dim": 40, "rope_head_dim": 10,
  "q_lora_rank": 32, "o_groups": 2, "o_lora_rank": 16, "window_size": 8,
  "compress_ratios": [0, 2, 1, 1], "kv_source_layers": [1, 2], "index_source_layers": [1, 2, 3],
  "candidate_source_layer": 2, "candidate_topk_blocks": 3, "candidate_block_size": 4,
  "index_n_heads": 8, "index_head_dim": 24, "index_topk": 6, "moe_inter_dim": 32,
  "n_routed_experts": 8, "n_activated_experts": 2, "score_func": "sqrtsoftplus",
  "route_scale": 2.5, "norm_eps": 0.05, "n_mtp_layers": 0, "rope_factor": 8, "beta_fast": 30,
  "beta_slow": 2, "original_seq_len": 64})";

std::string error_of(const std::string& text, ErrorCode code = ErrorCode::kInvalidArgument) {
  try {
    parse_model_config(text, "c.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

// The published configuration with one member of text_config changed ("" removes it).
std::string changed(const std::string& name, const std::string& value) {
  Value root = json::parse(kPublished);
  Value model = *root.find("text_config");
  if (value.empty())
    std::erase_if(model.members(),
                  [&](const json::Member& member) { return member.first == name; });
  else
    model.set(name, json::parse(value));
  root.set("text_config", std::move(model));
  return json::dump(root);
}

TEST(ModelConfig, PublishedConfigurationIsTheDefaultOne) {
  const ModelConfig config = parse_model_config(kPublished, "c.json");
  EXPECT_EQ(model_config_json(config), model_config_json(deepseek_v41_flash_config()));
  EXPECT_EQ(config.compress_ratios.size(), 40u);
  EXPECT_EQ(config.image_token_id, 129264);
  EXPECT_EQ(config.rms_norm_eps, 1e-20);
  EXPECT_EQ(config.gate_temp, 1.0);
  EXPECT_EQ(config.quantization.quant_method, "fp8");
  EXPECT_THAT(config.quantization.weight_block_size, ElementsAre(32, 32));
  EXPECT_EQ(config.hc_mix_size(), 24);
  EXPECT_EQ(config.engram_num_columns(), 24);
}

// The table of layers, row by row.
TEST(ModelConfig, LayerMap) {
  const ModelConfig config = parse_model_config(kPublished, "c.json");
  std::string modes;
  for (int64_t layer = 0; layer < 40; ++layer) modes += layer_mode_name(config.mode(layer))[2];
  // sw[a], fu[l]l, re[i]ndex, re[u]se
  EXPECT_EQ(modes, "aaluuuuuluuuuuluuuuuluuuiuuuiuuuiuuuiuuu");
  EXPECT_EQ(config.source(0), -1);
  EXPECT_EQ(config.index_source(1), -1);
  EXPECT_EQ(config.source(7), 2);
  EXPECT_EQ(config.source(13), 8);
  EXPECT_EQ(config.source(39), 20);
  EXPECT_EQ(config.index_source(19), 14);
  EXPECT_EQ(config.index_source(23), 20);
  EXPECT_EQ(config.index_source(27), 24);
  EXPECT_EQ(config.index_source(39), 36);
  EXPECT_TRUE(config.is_candidate_source(20));
  EXPECT_FALSE(config.is_candidate_source(24));
  EXPECT_FALSE(config.uses_candidates(20));
  EXPECT_TRUE(config.uses_candidates(24));
  EXPECT_FALSE(config.uses_candidates(25));
  EXPECT_EQ(config.decoder_begin(), 20);
  EXPECT_EQ(config.engram_idx(1), 0);
  EXPECT_EQ(config.engram_idx(14), 1);
  EXPECT_EQ(config.engram_idx(2), -1);
}

TEST(ModelConfig, FlatNames) {
  const ModelConfig config = parse_model_config(kFlat, "c.json");
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.num_hidden_layers, 4);
  EXPECT_EQ(config.num_attention_heads, 4);
  EXPECT_EQ(config.qk_rope_head_dim, 10);
  EXPECT_EQ(config.sliding_window, 8);
  EXPECT_THAT(config.kv_source_layer_ids, ElementsAre(1, 2));
  EXPECT_THAT(config.index_source_layer_ids, ElementsAre(1, 2, 3));
  EXPECT_EQ(config.candidate_source_layer_id, 2);
  EXPECT_EQ(config.moe_intermediate_size, 32);
  EXPECT_EQ(config.num_experts_per_tok, 2);
  EXPECT_EQ(config.routed_scaling_factor, 2.5);
  EXPECT_EQ(config.rms_norm_eps, 0.05);
  EXPECT_EQ(config.num_nextn_predict_layers, 0);
  EXPECT_EQ(config.rope_scaling.factor, 8);
  EXPECT_EQ(config.rope_scaling.beta_fast, 30);
  EXPECT_EQ(config.rope_scaling.beta_slow, 2);
  EXPECT_EQ(config.rope_scaling.original_max_position_embeddings, 64);
  EXPECT_TRUE(config.engram_layer_ids.empty());
  EXPECT_EQ(config.image_token_id, -1);
}

TEST(ModelConfig, WritesWhatItReads) {
  for (const char* text : {kPublished, kFlat}) {
    const std::string once = model_config_json(parse_model_config(text, "c.json"));
    EXPECT_EQ(model_config_json(parse_model_config(once, "d.json")), once);
  }
}

TEST(ModelConfig, BothSpellings) {
  EXPECT_EQ(parse_model_config(changed("engram_pad_id", "2"), "c").engram_pad_token_id, 2);
  EXPECT_THAT(error_of(changed("engram_pad_id", "3")),
              AllOf(HasSubstr("c.json: engram_pad_token_id"), HasSubstr("engram_pad_id")));
  Value root = json::parse(changed("engram_pad_id", "7"));
  Value model = *root.find("text_config");
  std::erase_if(model.members(),
                [](const json::Member& member) { return member.first == "engram_pad_token_id"; });
  root.set("text_config", std::move(model));
  EXPECT_EQ(parse_model_config(json::dump(root), "c").engram_pad_token_id, 7);
  const auto factor = [](const char* scaling) {
    return parse_model_config(changed("rope_scaling", scaling), "c").rope_scaling.factor;
  };
  EXPECT_EQ(factor(R"({"type":"yarn","factor":4})"), 4);
  EXPECT_EQ(factor(R"({"rope_type":"yarn","factor":4})"), 4);
  EXPECT_EQ(factor(R"({"rope_type":"yarn","type":"yarn"})"), 16);
  EXPECT_EQ(factor(R"({"rope_type":"default"})"), 1);
  EXPECT_EQ(factor("null"), 1);
}

TEST(ModelConfig, MissingEngramListsMeanNone) {
  Value root = json::parse(changed("engram_layer_ids", ""));
  Value model = *root.find("text_config");
  std::erase_if(model.members(),
                [](const json::Member& member) { return member.first == "engram_num_embeddings"; });
  root.set("text_config", std::move(model));
  EXPECT_TRUE(parse_model_config(json::dump(root), "c").engram_layer_ids.empty());
  EXPECT_THAT(error_of(changed("engram_layer_ids", "")), HasSubstr("engram_num_embeddings"));
}

TEST(ModelConfig, RefusesWhatIsNotSupported) {
  const std::pair<const char*, const char*> cases[] = {{"scoring_func", "\"softmax\""},
                                                       {"topk_method", "\"greedy\""},
                                                       {"hidden_act", "\"gelu\""},
                                                       {"num_key_value_heads", "2"},
                                                       {"attention_bias", "true"},
                                                       {"tie_word_embeddings", "true"},
                                                       {"n_group", "8"},
                                                       {"num_hash_layers", "3"},
                                                       {"rope_scaling", R"({"type":"linear"})"}};
  for (const auto& [name, value] : cases)
    EXPECT_THAT(
        error_of(changed(name, value), ErrorCode::kUnsupported),
        AllOf(HasSubstr("c.json: "), HasSubstr(name), HasSubstr("expected"), HasSubstr("found")));
}

TEST(ModelConfig, RefusesWhatDoesNotFit) {
  struct Case {
    const char* name;
    const char* value;
    const char* field;  // that the message names
  };
  const Case cases[] = {
      {"hidden_size", "0", "hidden_size"},
      {"hidden_size", "-5120", "hidden_size"},
      {"hidden_size", "5120.0", "hidden_size"},
      {"hidden_size", "\"5120\"", "hidden_size"},
      {"hidden_size", "123456789012345678901234567890", "hidden_size"},
      {"vocab_size", "9223372036854775807", "vocab_size"},
      {"num_hidden_layers", "0", "num_hidden_layers"},
      {"num_hidden_layers", "44", "compress_ratios"},
      {"compress_ratios", "\"0\"", "compress_ratios"},
      {"compress_ratios", "[0, 1.5]", "compress_ratios"},
      {"compress_ratios", "", "compress_ratios"},
      {"o_groups", "7", "o_groups"},
      {"qk_rope_head_dim", "63", "qk_rope_head_dim"},
      {"qk_rope_head_dim", "130", "qk_rope_head_dim"},
      {"num_experts_per_tok", "385", "num_experts_per_tok"},
      {"n_shared_experts", "2", "n_shared_experts"},
      {"kv_source_layer_ids", "[2, 2, 8, 14, 20]", "kv_source_layer_ids"},
      {"kv_source_layer_ids", "[2, 14, 8, 20]", "kv_source_layer_ids"},
      {"kv_source_layer_ids", "[1, 2, 8, 14, 20]", "kv_source_layer_ids"},
      {"kv_source_layer_ids", "[2, 8, 14, 20, 40]", "kv_source_layer_ids"},
      {"kv_source_layer_ids", "[8, 14, 20]", "compress_ratios"},
      {"kv_source_layer_ids", "[2, 8, 14]", "compress_ratios"},
      {"kv_source_layer_ids", "[2, 8, 14, 20, 21]", "index_source_layer_ids"},
      {"index_source_layer_ids", "[8, 14, 20]", "index_source_layer_ids"},
      {"index_source_layer_ids", "[0, 2, 8, 14, 20]", "index_source_layer_ids"},
      {"candidate_source_layer_id", "24", "candidate_source_layer_id"},
      {"candidate_source_layer_id", "1000000", "candidate_source_layer_id"},
      {"engram_layer_ids", "[1, 14, 15]", "engram_num_embeddings"},
      {"engram_layer_ids", "[14, 1]", "engram_layer_ids"},
      {"engram_num_embeddings", "[0, 1]", "engram_num_embeddings"},
      {"engram_pad_token_id", "129280", "engram_pad_token_id"},
      {"rms_norm_eps", "-1e-20", "rms_norm_eps"},
      {"rms_norm_eps", "\"x\"", "rms_norm_eps"},
      {"swiglu_limit", "1e300", "swiglu_limit"},
      {"norm_topk_prob", "1", "norm_topk_prob"},
      {"rope_scaling", "7", "rope_scaling"},
      {"rope_scaling", R"({"factor": 0})", "rope_scaling.factor"},
      {"rope_scaling", R"({"original_max_position_embeddings": 0})",
       "rope_scaling.original_max_position_embeddings"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(error_of(changed(c.name, c.value)),
                AllOf(HasSubstr(std::string("c.json: ") + c.field), HasSubstr("expected"),
                      HasSubstr("found")))
        << c.name << " " << c.value;
  }
  EXPECT_THAT(error_of(changed("compress_ratios",
                               "[0,0,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,"
                               "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4]"),
                       ErrorCode::kUnsupported),
              HasSubstr("found 4 for layer 39"));
}

TEST(ModelConfig, RefusesWhatIsNoConfiguration) {
  EXPECT_THAT(error_of(""), HasSubstr("c.json: json: "));
  EXPECT_THAT(error_of("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(error_of("{}"), HasSubstr("compress_ratios"));
  EXPECT_THAT(error_of(R"({"text_config": 1})"), HasSubstr("text_config"));
  EXPECT_THAT(error_of(R"({"a": 1, "a": 2})"), HasSubstr("appears twice"));
  EXPECT_THROW(load_model_config("/nonexistent"), Error);
}

}  // namespace
}  // namespace onecard::model
