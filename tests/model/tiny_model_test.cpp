#include "make_tiny_model/tiny_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "base/error.h"
#include "io/checkpoint.h"
#include "io/engram_reader.h"
#include "io/file.h"
#include "model/tensor_table.h"
#include "support/temp_dir.h"
#include "tensor/buffer.h"

namespace onecard::tiny {
namespace {

using model::ModelConfig;
using testing::ElementsAre;
using testing::HasSubstr;

io::Checkpoint write_and_open(const test::TempDir& dir, const ModelConfig& config,
                              const TinyOptions& options = {}) {
  write_checkpoint(dir.path(), config, options);
  return io::Checkpoint::open(dir.path());
}

std::vector<float> as_f32(const io::StoredTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

// Values printed by another program that makes the same weights.
TEST(TinyModel, WeightsAreTheAgreedOnes) {
  const test::TempDir dir;
  const io::Checkpoint checkpoint = write_and_open(dir, preset_config("t-nq"));
  const std::vector<float> embed = as_f32(checkpoint.at("embed.weight"));
  EXPECT_FLOAT_EQ(embed[0], 0.0350399017f);
  EXPECT_FLOAT_EQ(embed[1], 0.8896987438f);
  EXPECT_FLOAT_EQ(embed[2], 0.6592632532f);
  EXPECT_FLOAT_EQ(embed[3], 0.5222264528f);
  const std::vector<float> wq_a = as_f32(checkpoint.at("layers.3.attn.wq_a.weight"));
  EXPECT_FLOAT_EQ(wq_a[64], -0.2032014728f);
  EXPECT_FLOAT_EQ(wq_a[65], 0.0410212651f);
  EXPECT_FLOAT_EQ(wq_a[66], 0.0734467804f);
}

TEST(TinyModel, RangesByKindOfTensor) {
  const auto range = [](const char* name) { return weight_range(name, 48); };
  using Range = std::pair<double, double>;
  const double linear = std::sqrt(3.0 / 48);
  EXPECT_EQ(range("norm.weight"), Range(0.1, 1));
  EXPECT_EQ(range("layers.0.attn.indexer.k_norm.weight"), Range(0.1, 1));
  EXPECT_EQ(range("layers.0.attn.compressor.norm.weight"), Range(0.1, 1));
  EXPECT_EQ(range("layers.0.hc_attn_fn"), Range(0.05, 0));
  EXPECT_EQ(range("layers.0.hc_ffn_base"), Range(0.5, 0));
  EXPECT_EQ(range("layers.0.hc_ffn_scale"), Range(0.2, 1));
  EXPECT_EQ(range("layers.1.engram.embed.weight"), Range(1, 0));
  EXPECT_EQ(range("layers.1.attn.attn_sink"), Range(1, 0));
  EXPECT_EQ(range("layers.1.ffn.gate.bias_vl"), Range(0.05, 0));
  EXPECT_EQ(range("layers.1.engram.q_weight"), Range(0.2, 1));
  EXPECT_EQ(range("layers.1.ffn.gate.weight"), Range(linear, 0));
  EXPECT_EQ(range("layers.1.engram.wkv.weight"), Range(linear, 0));
  EXPECT_EQ(range("layers.1.attn.compressor.wgate.weight"), Range(linear, 0));
  EXPECT_EQ(range("head.weight"), Range(linear, 0));
}

TEST(TinyModel, SeedChangesEveryWeight) {
  std::array<float, 64> first{};
  std::array<float, 64> second{};
  fill_weights("embed.weight", 8, 0, first);
  fill_weights("embed.weight", 8, 5, second);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_NE(first[i], second[i]);
  fill_weights("5:embed.weight", 8, 0, first);
  EXPECT_EQ(first, second);
}

TEST(TinyModel, PresetsHaveThePublishedTables) {
  EXPECT_THAT(preset_config("t-q").engram_num_embeddings, ElementsAre(462, 630));
  EXPECT_THAT(preset_config("t-nq").engram_num_embeddings, ElementsAre(462, 630));
  // The released sizes from the released rule: primes upwards of 16 million.
  EXPECT_THAT(engram_rows(model::deepseek_v41_flash_config()), ElementsAre(384006168, 384016682));
  EXPECT_EQ(preset_config("t-nq2").swiglu_limit, 0.75);
  EXPECT_EQ(preset_config("t-nq2").head_dim, 40);
  EXPECT_THROW(preset_config("t"), Error);
}

TEST(TinyModel, TokenMap) {
  const test::TempDir dir;
  write_checkpoint(dir.path(), preset_config("t-q"));
  const std::string map = io::read_text_file(dir.file("engram_token_map.i32"), 1000);
  ASSERT_EQ(map.size(), 96u * 4);
  EXPECT_EQ(map.substr(2 * 4, 4), std::string("\x0e\0\0\0", 4));   // 14
  EXPECT_EQ(map.substr(11 * 4, 4), std::string("\x1b\0\0\0", 4));  // 77 mod 50
}

struct Stored {
  const char* name;
  TinyOptions options;
  const char* preset;
};
void PrintTo(const Stored& stored, std::ostream* os) { *os << stored.name; }

class TinyModelStorage : public testing::TestWithParam<Stored> {};

// What is written is a whole checkpoint of the model, in the format that was asked for.
TEST_P(TinyModelStorage, EveryTensorIsAccountedFor) {
  const test::TempDir dir;
  const ModelConfig config = preset_config(GetParam().preset);
  const io::Checkpoint checkpoint = write_and_open(dir, config, GetParam().options);
  const model::Account account = model::account(checkpoint, model::load_model_config(dir.path()));
  EXPECT_THAT(account.errors, ElementsAre());
  EXPECT_EQ(account.ignored.num_tensors, config.num_hidden_layers);  // gate.bias_vl
  const model::StoredLinear wq_a =
      *model::find_linear(checkpoint, "layers.0.attn.wq_a", config.q_lora_rank, config.hidden_size);
  const model::StoredLinear expert = *model::find_linear(
      checkpoint, "layers.0.ffn.experts.1.w2", config.hidden_size, config.moe_intermediate_size);
  switch (GetParam().options.storage) {
    case Storage::kF32:
    case Storage::kBf16:
      EXPECT_EQ(wq_a.format, model::WeightFormat::kPlain);
      break;
    case Storage::kFp8:
      EXPECT_EQ(wq_a.format, model::WeightFormat::kFp8);
      EXPECT_EQ(expert.format, model::WeightFormat::kFp4);
      break;
    case Storage::kExl3:
      EXPECT_EQ(wq_a.bits, 5);
      EXPECT_EQ(expert.bits, 3);
  }
}

INSTANTIATE_TEST_SUITE_P(
    , TinyModelStorage,
    testing::Values(Stored{"f32", {}, "t-q"}, Stored{"bf16", {.storage = Storage::kBf16}, "t-nq"},
                    Stored{"fp8", {.storage = Storage::kFp8, .shard_bytes = 100000}, "t-q"},
                    Stored{"fp8 odd sizes", {.storage = Storage::kFp8}, "t-nq"},
                    Stored{"exl3", {.storage = Storage::kExl3}, "tiers"}));

// FP8 and FP4 weights decode to the generated ones within half a step of their grids.
TEST(TinyModel, QuantisedWeightsAreTheGeneratedOnes) {
  const test::TempDir dir;
  const ModelConfig config = preset_config("t-q");
  const io::Checkpoint checkpoint = write_and_open(dir, config, {.storage = Storage::kFp8});
  const auto byte = [](const io::StoredTensor* tensor, int64_t idx) {
    return std::to_integer<uint8_t>(tensor->bytes[size_t(idx)]);
  };

  const int64_t rows = config.num_attention_heads * config.head_dim;
  const int64_t cols = config.q_lora_rank;
  std::vector<float> weights(size_t(rows * cols));
  fill_weights("layers.2.attn.wq_b.weight", cols, 0, weights);
  const model::StoredLinear fp8 = *model::find_linear(checkpoint, "layers.2.attn.wq_b", rows, cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const float scale = e8m0_to_f32(byte(fp8.scale, i / cols / 32 * (cols / 32) + i % cols / 32));
    const float value = e4m3_to_f32(byte(fp8.weight, i)) * scale;
    // e4m3 keeps 4 significant bits; below 2^-6 its step is 2^-9.
    const float bound = std::max(std::fabs(weights[size_t(i)]) / 16, scale * 0x1p-10f);
    ASSERT_NEAR(value, weights[size_t(i)], bound) << i;
  }

  const int64_t inner = config.moe_intermediate_size;
  weights.resize(size_t(config.hidden_size * inner));
  fill_weights("layers.2.ffn.experts.3.w2.weight", inner, 0, weights);
  const model::StoredLinear fp4 =
      *model::find_linear(checkpoint, "layers.2.ffn.experts.3.w2", config.hidden_size, inner);
  for (int64_t i = 0; i < config.hidden_size * inner; ++i) {
    const float scale = e8m0_to_f32(byte(fp4.scale, i / 32));
    const uint8_t pair = byte(fp4.weight, i / 2);
    const float value = e2m1_to_f32(uint8_t(i % 2 == 0 ? pair & 15 : pair >> 4)) * scale;
    ASSERT_NEAR(value, weights[size_t(i)], scale) << i;  // the widest gap, 4 to 6, halved
  }
}

TEST(TinyModel, EngramTablesAreReadByRow) {
  for (const Storage storage : {Storage::kF32, Storage::kFp8}) {
    const test::TempDir dir;
    const ModelConfig config = preset_config("t-q");
    const io::Checkpoint checkpoint = write_and_open(dir, config, {.storage = storage});
    const auto reader =
        io::make_pread_engram_reader({io::open_row_table(checkpoint, "layers.4.engram.embed")}, 2);
    std::vector<float> table(630 * 32);
    fill_weights("layers.4.engram.embed.weight", 32, 0, table);
    const std::vector<int64_t> rows{629, 0, 73, 629};
    Buffer<float> out(4 * 32);
    reader->submit(0, rows, out.view(4, 32)).wait();
    for (size_t i = 0; i < rows.size(); ++i)
      for (size_t col = 0; col < 32; ++col) {
        const float value = table[size_t(rows[i]) * 32 + col];
        EXPECT_NEAR(out[int64_t(i * 32 + col)], value,
                    storage == Storage::kF32 ? 0 : std::max(std::fabs(value) / 16, 0x1p-18f));
      }
  }
}

TEST(TinyModel, MembersReplaceAndTablesFollow) {
  using Members = std::vector<std::pair<std::string, std::string>>;
  const ModelConfig base = preset_config("t-nq");
  const ModelConfig one_head =
      with_members(base, Members{{"engram_n_heads", "1"}, {"sliding_window", "1"}});
  EXPECT_EQ(one_head.sliding_window, 1);
  EXPECT_THAT(one_head.engram_num_embeddings, ElementsAre(67 + 71 + 73, 79 + 83 + 89));
  EXPECT_TRUE(with_members(base, Members{{"engram_layer_ids", "[]"}}).engram_layer_ids.empty());
  EXPECT_EQ(with_members(base, Members{{"engram_pad_token_id", "5"}}).engram_pad_token_id, 5);
  EXPECT_THROW(with_members(base, Members{{"o_groups", "3"}}), Error);
  const test::TempDir dir;
  const ModelConfig one_expert =
      with_members(base, Members{{"n_routed_experts", "1"}, {"num_experts_per_tok", "1"}});
  const io::Checkpoint checkpoint = write_and_open(dir, one_expert);
  EXPECT_TRUE(model::account(checkpoint, one_expert).ok());
}

TEST(TinyModel, RefusesFormatsThatDoNotFit) {
  const test::TempDir dir;
  EXPECT_THAT(
      [&] { write_checkpoint(dir.path(), preset_config("t-q"), {.storage = Storage::kExl3}); },
      testing::ThrowsMessage<Error>(HasSubstr("multiples of 128")));
}

}  // namespace
}  // namespace onecard::tiny
