#include "model/config.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "io/file.h"

namespace onecard::model {
namespace {

constexpr int64_t kMaxConfigBytes = 16 << 20;

// Bounds that keep every product of sizes far inside 63 bits; far above any model of this family.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxExperts = 1 << 16;
constexpr int64_t kMaxCount = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxTableRows = int64_t{1} << 40;

struct IntegerField {
  const char* name;
  const char* flat_name;  // in inference/config.json, when it differs
  int64_t ModelConfig::*member;
  int64_t min;
  int64_t max;
};

constexpr IntegerField kIntegers[] = {
    {"vocab_size", nullptr, &ModelConfig::vocab_size, 1, 1 << 24},
    {"hidden_size", "dim", &ModelConfig::hidden_size, 1, kMaxWidth},
    {"num_hidden_layers", "n_layers", &ModelConfig::num_hidden_layers, 1, kMaxLayers},
    {"num_attention_heads", "n_heads", &ModelConfig::num_attention_heads, 1, kMaxHeads},
    {"head_dim", nullptr, &ModelConfig::head_dim, 1, 1 << 16},
    {"qk_rope_head_dim", "rope_head_dim", &ModelConfig::qk_rope_head_dim, 2, 1 << 16},
    {"q_lora_rank", nullptr, &ModelConfig::q_lora_rank, 1, kMaxWidth},
    {"o_groups", nullptr, &ModelConfig::o_groups, 1, kMaxHeads},
    {"o_lora_rank", nullptr, &ModelConfig::o_lora_rank, 1, kMaxWidth},
    {"max_position_embeddings", nullptr, &ModelConfig::max_position_embeddings, 1, kMaxCount},
    {"sliding_window", "window_size", &ModelConfig::sliding_window, 1, kMaxWidth},
    {"candidate_source_layer_id", "candidate_source_layer", &ModelConfig::candidate_source_layer_id,
     -1, kMaxLayers},
    {"candidate_topk_blocks", nullptr, &ModelConfig::candidate_topk_blocks, 1, kMaxCount},
    {"candidate_block_size", nullptr, &ModelConfig::candidate_block_size, 1, kMaxCount},
    {"index_n_heads", nullptr, &ModelConfig::index_n_heads, 1, kMaxHeads},
    {"index_head_dim", nullptr, &ModelConfig::index_head_dim, 1, 1 << 16},
    {"index_topk", nullptr, &ModelConfig::index_topk, 1, kMaxCount},
    {"moe_intermediate_size", "moe_inter_dim", &ModelConfig::moe_intermediate_size, 1, kMaxWidth},
    {"n_routed_experts", nullptr, &ModelConfig::n_routed_experts, 1, kMaxExperts},
    {"n_shared_experts", nullptr, &ModelConfig::n_shared_experts, 1, 1},
    {"num_experts_per_tok", "n_activated_experts", &ModelConfig::num_experts_per_tok, 1,
     kMaxExperts},
    {"hc_mult", nullptr, &ModelConfig::hc_mult, 1, 64},
    {"hc_sinkhorn_iters", nullptr, &ModelConfig::hc_sinkhorn_iters, 1, 10000},
    {"engram_max_ngram_size", nullptr, &ModelConfig::engram_max_ngram_size, 2, 16},
    {"engram_vocab_size", nullptr, &ModelConfig::engram_vocab_size, 1, kMaxTableRows},
    {"engram_n_heads", nullptr, &ModelConfig::engram_n_heads, 1, kMaxHeads},
    {"engram_head_dim", nullptr, &ModelConfig::engram_head_dim, 1, 1 << 16},
    {"engram_pad_token_id", "engram_pad_id", &ModelConfig::engram_pad_token_id, 0, 1 << 24},
    {"engram_compressed_vocab_size", nullptr, &ModelConfig::engram_compressed_vocab_size, 1,
     1 << 24},
    {"num_nextn_predict_layers", "n_mtp_layers", &ModelConfig::num_nextn_predict_layers, 0,
     kMaxLayers},
    {"dspark_n_routed_experts", nullptr, &ModelConfig::dspark_n_routed_experts, 0, kMaxExperts},
    {"dspark_markov_rank", nullptr, &ModelConfig::dspark_markov_rank, 0, kMaxWidth},
};

// Beside text_config, not inside it.
constexpr IntegerField kTokenIds[] = {
    {"bos_token_id", nullptr, &ModelConfig::bos_token_id, 0, 1 << 24},
    {"eos_token_id", nullptr, &ModelConfig::eos_token_id, 0, 1 << 24},
    {"pad_token_id", nullptr, &ModelConfig::pad_token_id, 0, 1 << 24},
    {"image_token_id", nullptr, &ModelConfig::image_token_id, -1, 1 << 24},
};

struct RealField {
  const char* name;
  const char* flat_name;
  double ModelConfig::*member;
  double min;
};

constexpr RealField kReals[] = {
    {"rope_theta", nullptr, &ModelConfig::rope_theta, 1},
    {"compress_rope_theta", nullptr, &ModelConfig::compress_rope_theta, 1},
    {"routed_scaling_factor", "route_scale", &ModelConfig::routed_scaling_factor, 0},
    {"swiglu_limit", nullptr, &ModelConfig::swiglu_limit, 0},
    {"gate_temp", nullptr, &ModelConfig::gate_temp, std::numeric_limits<double>::min()},
    {"hc_eps", nullptr, &ModelConfig::hc_eps, 0},
    {"rms_norm_eps", "norm_eps", &ModelConfig::rms_norm_eps, 0},
};

struct ListField {
  const char* name;
  const char* flat_name;
  std::vector<int64_t> ModelConfig::*member;
};

constexpr ListField kLists[] = {
    {"compress_ratios", nullptr, &ModelConfig::compress_ratios},
    {"kv_source_layer_ids", "kv_source_layers", &ModelConfig::kv_source_layer_ids},
    {"index_source_layer_ids", "index_source_layers", &ModelConfig::index_source_layer_ids},
    {"engram_layer_ids", nullptr, &ModelConfig::engram_layer_ids},
    {"engram_num_embeddings", nullptr, &ModelConfig::engram_num_embeddings},
    {"dspark_target_layer_ids", nullptr, &ModelConfig::dspark_target_layer_ids},
};

// Members that may hold one value only: another would change what the model computes.
struct FixedText {
  const char* name;
  const char* flat_name;
  const char* value;
};
constexpr FixedText kFixedTexts[] = {
    {"scoring_func", "score_func", "sqrtsoftplus"},
    {"topk_method", nullptr, "noaux_tc"},
    {"hidden_act", nullptr, "silu"},
};
struct FixedInteger {
  const char* name;
  int64_t value;
};
constexpr FixedInteger kFixedIntegers[] = {
    {"num_key_value_heads", 1}, {"n_group", 1}, {"topk_group", 1}, {"num_hash_layers", 0}};
constexpr const char* kFixedFalse[] = {"attention_bias", "tie_word_embeddings"};

std::string join(const std::vector<int64_t>& list) {
  std::string text = "[";
  for (size_t i = 0; i < list.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(list[i]);
  return text + "]";
}

// What a message shows of a value: its JSON, cut short.
std::string shown(const json::Value& value) {
  std::string text = json::dump(value);
  if (text.size() > 80) text.replace(77, std::string::npos, "...");
  return text;
}

// One object of the configuration. Members that are null count as absent.
class Section {
 public:
  Section(std::string_view file, const json::Value& object) : file_(file), object_(object) {}

  const json::Value* find(const char* name) const {
    const json::Value* value = object_.find(name);
    return value == nullptr || value->is_null() ? nullptr : value;
  }

  // By either of two names; both may be there when they agree.
  const json::Value* find(const char* name, const char* flat_name) const {
    const json::Value* value = find(name);
    const json::Value* flat = flat_name == nullptr ? nullptr : find(flat_name);
    if (value != nullptr && flat != nullptr && json::dump(*value) != json::dump(*flat))
      fail(name, std::string("the same value as ") + flat_name + ", which is " + shown(*flat),
           *value);
    return value != nullptr ? value : flat;
  }

  void integer(const char* name, const char* flat_name, int64_t& out) const {
    const json::Value* value = find(name, flat_name);
    if (value == nullptr) return;
    const std::optional<int64_t> number = value->is_number() ? value->as_int64() : std::nullopt;
    if (!number) fail(name, "an integer", *value);
    out = *number;
  }

  void real(const char* name, const char* flat_name, double& number) const {
    const json::Value* value = find(name, flat_name);
    if (value == nullptr) return;
    if (!value->is_number()) fail(name, "a number", *value);
    number = value->as_double();
  }

  void boolean(const char* name, bool& flag) const {
    const json::Value* value = find(name);
    if (value == nullptr) return;
    if (!value->is_bool()) fail(name, "true or false", *value);
    flag = value->as_bool();
  }

  void text(const char* name, std::string& out) const {
    const json::Value* value = find(name);
    if (value == nullptr) return;
    if (!value->is_string()) fail(name, "a string", *value);
    out = value->as_string();
  }

  void list(const char* name, const char* flat_name, std::vector<int64_t>& out) const {
    const json::Value* value = find(name, flat_name);
    if (value == nullptr) return;
    if (!value->is_array()) fail(name, "a list of integers", *value);
    out.clear();
    for (const json::Value& item : value->items()) {
      const std::optional<int64_t> number = item.is_number() ? item.as_int64() : std::nullopt;
      if (!number) fail(name, "a list of integers", *value);
      out.push_back(*number);
    }
  }

  [[noreturn]] void fail(const char* name, const std::string& expected, const json::Value& found,
                         ErrorCode code = ErrorCode::kInvalidArgument) const {
    throw Error(code, std::string(file_) + ": " + name + ": expected " + expected + ", found " +
                          shown(found));
  }

 private:
  std::string_view file_;
  const json::Value& object_;
};

void refuse_unsupported(const Section& section) {
  for (const FixedText& field : kFixedTexts) {
    const json::Value* value = section.find(field.name, field.flat_name);
    if (value != nullptr && (!value->is_string() || value->as_string() != field.value))
      section.fail(field.name, json::quoted(field.value), *value, ErrorCode::kUnsupported);
  }
  for (const FixedInteger& field : kFixedIntegers) {
    const json::Value* value = section.find(field.name);
    if (value != nullptr && (!value->is_number() || value->as_int64() != field.value))
      section.fail(field.name, std::to_string(field.value), *value, ErrorCode::kUnsupported);
  }
  for (const char* name : kFixedFalse) {
    const json::Value* value = section.find(name);
    if (value != nullptr && (!value->is_bool() || value->as_bool()))
      section.fail(name, "false", *value, ErrorCode::kUnsupported);
  }
}

void parse_rope_scaling(std::string_view file, const json::Value& root, const Section& section,
                        RopeScaling& rope) {
  const json::Value* value = root.find("rope_scaling");
  if (value == nullptr) {  // the flat file has its members at the top
    section.real("rope_factor", nullptr, rope.factor);
    section.real("beta_fast", nullptr, rope.beta_fast);
    section.real("beta_slow", nullptr, rope.beta_slow);
    section.integer("original_seq_len", nullptr, rope.original_max_position_embeddings);
    return;
  }
  if (value->is_null()) {
    rope.factor = 1;
    return;
  }
  if (!value->is_object()) section.fail("rope_scaling", "an object", *value);
  const Section scaling(file, *value);
  if (const json::Value* type = scaling.find("rope_type", "type")) {
    if (type->is_string() && type->as_string() == "default") {
      rope.factor = 1;
      return;
    }
    if (!type->is_string() || type->as_string() != "yarn")
      scaling.fail("rope_scaling.rope_type", "\"yarn\" or \"default\"", *type,
                   ErrorCode::kUnsupported);
  }
  scaling.real("factor", nullptr, rope.factor);
  scaling.real("beta_fast", nullptr, rope.beta_fast);
  scaling.real("beta_slow", nullptr, rope.beta_slow);
  scaling.integer("original_max_position_embeddings", nullptr,
                  rope.original_max_position_embeddings);
}

void parse_quantization(std::string_view file, const json::Value& root,
                        QuantizationConfig& quantization) {
  const Section top(file, root);
  const json::Value* value = top.find("quantization_config");
  if (value == nullptr) return;
  if (!value->is_object()) top.fail("quantization_config", "an object", *value);
  const Section section(file, *value);
  section.text("quant_method", quantization.quant_method);
  section.text("expert_dtype", quantization.expert_dtype);
  section.text("scale_fmt", quantization.scale_fmt);
  section.list("weight_block_size", nullptr, quantization.weight_block_size);
  section.real("bits", nullptr, quantization.bits);
}

}  // namespace

const char* layer_mode_name(LayerMode mode) {
  switch (mode) {
    case LayerMode::kSwa:
      return "swa";
    case LayerMode::kFull:
      return "full";
    case LayerMode::kReindex:
      return "reindex";
    case LayerMode::kReuse:
      return "reuse";
  }
  return "?";
}

namespace {

bool contains(const std::vector<int64_t>& list, int64_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// The largest entry <= value of an ascending list, or -1.
int64_t last_at_or_before(const std::vector<int64_t>& list, int64_t value) {
  const auto after = std::upper_bound(list.begin(), list.end(), value);
  return after == list.begin() ? -1 : *std::prev(after);
}

}  // namespace

LayerMode ModelConfig::mode(int64_t layer_idx) const {
  if (ratio(layer_idx) == 0) return LayerMode::kSwa;
  if (is_kv_source(layer_idx)) return LayerMode::kFull;
  if (is_index_source(layer_idx)) return LayerMode::kReindex;
  return LayerMode::kReuse;
}

bool ModelConfig::is_kv_source(int64_t layer_idx) const {
  return contains(kv_source_layer_ids, layer_idx);
}

bool ModelConfig::is_index_source(int64_t layer_idx) const {
  return contains(index_source_layer_ids, layer_idx);
}

bool ModelConfig::uses_candidates(int64_t layer_idx) const {
  return candidate_source_layer_id >= 0 && mode(layer_idx) == LayerMode::kReindex &&
         source(layer_idx) == candidate_source_layer_id;
}

int64_t ModelConfig::source(int64_t layer_idx) const {
  return ratio(layer_idx) == 0 ? -1 : last_at_or_before(kv_source_layer_ids, layer_idx);
}

int64_t ModelConfig::index_source(int64_t layer_idx) const {
  return ratio(layer_idx) == 0 ? -1 : last_at_or_before(index_source_layer_ids, layer_idx);
}

int64_t ModelConfig::engram_idx(int64_t layer_idx) const {
  const auto place = std::find(engram_layer_ids.begin(), engram_layer_ids.end(), layer_idx);
  return place == engram_layer_ids.end() ? -1 : place - engram_layer_ids.begin();
}

int64_t ModelConfig::decoder_begin() const {
  return kv_source_layer_ids.empty() ? num_hidden_layers : kv_source_layer_ids.back();
}

namespace {

// Throws unless `holds`; `expected` and `found` say what is wrong with the field.
class Checker {
 public:
  explicit Checker(std::string_view file) : file_(file) {}

  void operator()(bool holds, const char* field, const std::string& expected,
                  const std::string& found, ErrorCode code = ErrorCode::kInvalidArgument) const {
    if (!holds)
      throw Error(
          code, std::string(file_) + ": " + field + ": expected " + expected + ", found " + found);
  }

 private:
  std::string_view file_;
};

void check_ranges(const ModelConfig& config, const Checker& check) {
  const auto integer = [&](const IntegerField& field) {
    const int64_t value = config.*field.member;
    check(value >= field.min && value <= field.max, field.name,
          std::to_string(field.min) + " to " + std::to_string(field.max), std::to_string(value));
  };
  std::for_each(std::begin(kIntegers), std::end(kIntegers), integer);
  std::for_each(std::begin(kTokenIds), std::end(kTokenIds), integer);
  for (const RealField& field : kReals) {
    const double value = config.*field.member;
    check(value >= field.min && value <= std::numeric_limits<float>::max(), field.name,
          "a number from " + json::dump(json::Value::real(field.min)) + " that fits a float",
          std::to_string(value));
  }
  const RopeScaling& rope = config.rope_scaling;
  check(rope.factor >= 1 && rope.factor <= 1e6, "rope_scaling.factor", "1 to 1e6",
        std::to_string(rope.factor));
  check(rope.beta_fast > 0 && rope.beta_slow > 0, "rope_scaling.beta_fast, beta_slow",
        "positive numbers", std::to_string(rope.beta_fast) + ", " + std::to_string(rope.beta_slow));
  check(rope.original_max_position_embeddings >= 1 &&
            rope.original_max_position_embeddings <= kMaxCount,
        "rope_scaling.original_max_position_embeddings", "1 to " + std::to_string(kMaxCount),
        std::to_string(rope.original_max_position_embeddings));
}

void check_sizes(const ModelConfig& config, const Checker& check) {
  check(config.num_attention_heads % config.o_groups == 0, "o_groups",
        "a divisor of num_attention_heads " + std::to_string(config.num_attention_heads),
        std::to_string(config.o_groups));
  check(config.qk_rope_head_dim % 2 == 0 &&
            config.qk_rope_head_dim <= std::min(config.head_dim, config.index_head_dim),
        "qk_rope_head_dim",
        "an even number up to head_dim " + std::to_string(config.head_dim) +
            " and index_head_dim " + std::to_string(config.index_head_dim),
        std::to_string(config.qk_rope_head_dim));
  check(config.num_experts_per_tok <= config.n_routed_experts, "num_experts_per_tok",
        "at most n_routed_experts " + std::to_string(config.n_routed_experts),
        std::to_string(config.num_experts_per_tok));
}

void check_layer_list(const ModelConfig& config, const Checker& check, const char* field,
                      const std::vector<int64_t>& list) {
  for (size_t i = 0; i < list.size(); ++i)
    check(list[i] >= (i == 0 ? 0 : list[i - 1] + 1) && list[i] < config.num_hidden_layers, field,
          "ascending layers below num_hidden_layers " + std::to_string(config.num_hidden_layers),
          join(list));
}

void check_layer_map(const ModelConfig& config, const Checker& check) {
  const auto num_layers = size_t(config.num_hidden_layers);
  check(config.compress_ratios.size() == num_layers, "compress_ratios",
        "one number for each of " + std::to_string(num_layers) + " layers",
        std::to_string(config.compress_ratios.size()));
  check_layer_list(config, check, "kv_source_layer_ids", config.kv_source_layer_ids);
  check_layer_list(config, check, "index_source_layer_ids", config.index_source_layer_ids);
  for (const int64_t layer : config.index_source_layer_ids)
    check(config.ratio(layer) > 0, "index_source_layer_ids", "layers whose compress_ratio is not 0",
          std::to_string(layer));
  for (const int64_t layer : config.kv_source_layer_ids) {
    check(config.ratio(layer) > 0, "kv_source_layer_ids", "layers whose compress_ratio is not 0",
          std::to_string(layer));
    check(config.is_index_source(layer), "index_source_layer_ids",
          "to hold every kv source, also " + std::to_string(layer),
          join(config.index_source_layer_ids));
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const int64_t ratio = config.ratio(layer);
    check(ratio >= 0 && ratio <= 2, "compress_ratios", "0, 1 or 2 for each layer",
          std::to_string(ratio) + " for layer " + std::to_string(layer), ErrorCode::kUnsupported);
    if (ratio == 0) continue;
    const int64_t source = config.source(layer);
    check(source >= 0 && config.ratio(source) == ratio, "compress_ratios",
          "a kv source of the same ratio at or before layer " + std::to_string(layer),
          source < 0 ? "none" : "layer " + std::to_string(source) + " of another");
  }
  const int64_t candidates = config.candidate_source_layer_id;
  check(candidates < 0 || config.is_kv_source(candidates), "candidate_source_layer_id",
        "one of kv_source_layer_ids " + join(config.kv_source_layer_ids),
        std::to_string(candidates));
}

void check_engram(const ModelConfig& config, const Checker& check) {
  check_layer_list(config, check, "engram_layer_ids", config.engram_layer_ids);
  check(config.engram_num_embeddings.size() == config.engram_layer_ids.size(),
        "engram_num_embeddings",
        "one number of rows for each of " + std::to_string(config.engram_layer_ids.size()) +
            " engram_layer_ids",
        std::to_string(config.engram_num_embeddings.size()));
  for (const int64_t rows : config.engram_num_embeddings)
    check(rows >= 1 && rows <= kMaxTableRows, "engram_num_embeddings",
          "1 to " + std::to_string(kMaxTableRows), std::to_string(rows));
  if (!config.engram_layer_ids.empty())
    check(config.engram_pad_token_id < config.vocab_size, "engram_pad_token_id",
          "a token below vocab_size " + std::to_string(config.vocab_size),
          std::to_string(config.engram_pad_token_id));
}

}  // namespace

void validate(const ModelConfig& config, std::string_view file) {
  const Checker check(file);
  check_ranges(config, check);
  check_sizes(config, check);
  check_layer_map(config, check);
  check_engram(config, check);
}

ModelConfig parse_model_config(std::string_view text, std::string_view file) {
  json::Value root;
  try {
    root = json::parse(text, {.max_depth = 32, .duplicate_keys = json::DuplicateKeys::kReject});
  } catch (const Error& error) {
    throw Error(error.code(), std::string(file) + ": " + error.what());
  }
  if (!root.is_object())
    throw Error(ErrorCode::kInvalidArgument,
                std::string(file) + ": expected an object, found " + shown(root));
  const Section top(file, root);
  const json::Value* nested = top.find("text_config");
  if (nested != nullptr && !nested->is_object()) top.fail("text_config", "an object", *nested);
  const json::Value& model = nested != nullptr ? *nested : root;
  const Section section(file, model);

  ModelConfig config;
  refuse_unsupported(section);
  for (const IntegerField& field : kIntegers)
    section.integer(field.name, field.flat_name, config.*field.member);
  for (const IntegerField& field : kTokenIds)
    top.integer(field.name, field.flat_name, config.*field.member);
  for (const RealField& field : kReals)
    section.real(field.name, field.flat_name, config.*field.member);
  for (const ListField& field : kLists)
    section.list(field.name, field.flat_name, config.*field.member);
  section.boolean("norm_topk_prob", config.norm_topk_prob);
  parse_rope_scaling(file, model, section, config.rope_scaling);
  parse_quantization(file, root, config.quantization);
  // The list goes on for the draft layers, which have layers of their own here.
  if (int64_t(config.compress_ratios.size()) > config.num_hidden_layers &&
      config.num_hidden_layers >= 0)
    config.compress_ratios.resize(size_t(config.num_hidden_layers));
  validate(config, file);
  return config;
}

ModelConfig load_model_config(const std::string& directory) {
  const std::filesystem::path nested = std::filesystem::path(directory) / "config.json";
  const std::filesystem::path flat = std::filesystem::path(directory) / "inference" / "config.json";
  std::error_code ignored;  // what cannot be examined cannot be opened either, which says why
  const std::filesystem::path& path =
      !std::filesystem::exists(nested, ignored) && std::filesystem::exists(flat, ignored) ? flat
                                                                                          : nested;
  return parse_model_config(io::read_text_file(path.string(), kMaxConfigBytes), path.string());
}

std::string model_config_json(const ModelConfig& config) {
  using json::Value;
  const auto list = [](const std::vector<int64_t>& numbers) {
    std::vector<Value> items;
    for (const int64_t number : numbers) items.push_back(Value::integer(number));
    return Value::array(std::move(items));
  };
  Value model = Value::object({{"model_type", Value::string("deepseek_v41_text")}});
  for (const IntegerField& field : kIntegers)
    model.set(field.name, Value::integer(config.*field.member));
  if (config.candidate_source_layer_id < 0) model.set("candidate_source_layer_id", Value());
  model.set("engram_pad_id", Value::integer(config.engram_pad_token_id));
  for (const RealField& field : kReals) model.set(field.name, Value::real(config.*field.member));
  for (const ListField& field : kLists) model.set(field.name, list(config.*field.member));
  for (const FixedText& field : kFixedTexts) model.set(field.name, Value::string(field.value));
  for (const char* name : kFixedFalse) model.set(name, Value::boolean(false));
  model.set("num_key_value_heads", Value::integer(1));
  model.set("norm_topk_prob", Value::boolean(config.norm_topk_prob));
  const RopeScaling& rope = config.rope_scaling;
  model.set("rope_scaling",
            Value::object({{"rope_type", Value::string("yarn")},
                           {"factor", Value::real(rope.factor)},
                           {"beta_fast", Value::real(rope.beta_fast)},
                           {"beta_slow", Value::real(rope.beta_slow)},
                           {"original_max_position_embeddings",
                            Value::integer(rope.original_max_position_embeddings)}}));
  Value root =
      Value::object({{"architectures", Value::array({Value::string("DeepseekV41ForCausalLM")})},
                     {"model_type", Value::string("deepseek_v41")}});
  for (const IntegerField& field : kTokenIds)
    if (config.*field.member >= 0) root.set(field.name, Value::integer(config.*field.member));
  const QuantizationConfig& quantization = config.quantization;
  if (!quantization.quant_method.empty()) {
    Value member = Value::object({{"quant_method", Value::string(quantization.quant_method)}});
    if (!quantization.expert_dtype.empty())
      member.set("expert_dtype", Value::string(quantization.expert_dtype));
    if (!quantization.scale_fmt.empty())
      member.set("scale_fmt", Value::string(quantization.scale_fmt));
    if (!quantization.weight_block_size.empty())
      member.set("weight_block_size", list(quantization.weight_block_size));
    if (quantization.bits > 0) member.set("bits", Value::real(quantization.bits));
    root.set("quantization_config", std::move(member));
  }
  root.set("text_config", std::move(model));
  return json::dump(root) + "\n";
}

ModelConfig deepseek_v41_flash_config() {
  ModelConfig config;
  config.compress_ratios.assign(2, 0);
  config.compress_ratios.insert(config.compress_ratios.end(), 18, 2);
  config.compress_ratios.insert(config.compress_ratios.end(), 20, 1);
  config.kv_source_layer_ids = {2, 8, 14, 20};
  config.index_source_layer_ids = {2, 8, 14, 20, 24, 28, 32, 36};
  config.candidate_source_layer_id = 20;
  config.engram_layer_ids = {1, 14};
  config.engram_num_embeddings = {384006168, 384016682};
  config.dspark_target_layer_ids = {37, 38, 39};
  config.image_token_id = 129264;
  config.quantization = {"fp8", "fp4", "ue8m0", {32, 32}, 0};
  return config;
}

}  // namespace onecard::model
