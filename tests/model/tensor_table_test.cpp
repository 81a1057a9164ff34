#include "model/tensor_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "io/safetensors_writer.h"
#include "model/model.h"
#include "sparse_checkpoint/sparse_checkpoint.h"
#include "support/temp_dir.h"

namespace onecard::model {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

struct GroupRow {
  TensorGroup group;
  int64_t num_tensors;
  int64_t bytes;
};

void expect_groups(const Account& account, std::initializer_list<GroupRow> rows) {
  for (const GroupRow& row : rows) {
    const TensorTotals& totals = account.groups[size_t(row.group)];
    EXPECT_EQ(totals.num_tensors, row.num_tensors) << tensor_group_name(row.group);
    if (row.bytes >= 0) {
      EXPECT_EQ(totals.bytes, row.bytes) << tensor_group_name(row.group);
    }
  }
}

// Against the published inventory: 96,085 tensors and 510,286,023,000 bytes, and its groups.
TEST(FullSize, OfficialCheckpointIsAccountedForToTheByte) {
  const test::TempDir dir;
  const ModelConfig config = deepseek_v41_flash_config();
  const std::vector<io::ShardSpec> shards = sparse::official_shards(config);
  EXPECT_EQ(shards.size(), 48u);
  sparse::write_sparse(dir.path(), shards, config);

  const io::Checkpoint checkpoint = io::Checkpoint::open(dir.path());
  const Account result = account(checkpoint, load_model_config(dir.path()));
  EXPECT_THAT(result.errors, ElementsAre());
  EXPECT_EQ(result.total.num_tensors, 96085);
  EXPECT_EQ(result.total.bytes, 510286023000);
  EXPECT_EQ(checkpoint.total_bytes(), 510286023000);
  expect_groups(result, {{TensorGroup::kRoutedExperts, 92160, 288777830400},
                         {TensorGroup::kEngramTables, 4, 202758032400},
                         {TensorGroup::kAttention, 520, 5069721600},
                         {TensorGroup::kEmbeddings, 2, 2647654400},
                         {TensorGroup::kSharedExperts, 240, 1416960000},
                         {TensorGroup::kVision, 266, 970536960},
                         {TensorGroup::kDraft, 2401, 7932874632},
                         {TensorGroup::kEngramProjections, 8, 315043840},
                         {TensorGroup::kGates, 120, 157409280},
                         {TensorGroup::kHyperConnections, 240, 157295040},
                         {TensorGroup::kIndexer, 32, 45130752},
                         {TensorGroup::kCompressor, 11, 36704256},
                         {TensorGroup::kNorms, 81, 829440}});
  EXPECT_EQ(result.ignored.num_tensors, 266 + 2401 + 40);
  EXPECT_EQ(result.used.num_tensors + result.ignored.num_tensors, 96085);
  EXPECT_EQ(result.unknown.num_tensors, 0);
  // The published number of tensors of each kind of layer, engram shards apart.
  const auto in_shard = [&](size_t layer) { return shards[layer + 2].tensors.size(); };
  EXPECT_EQ(in_shard(0), 2334u);
  EXPECT_EQ(in_shard(24), 2337u);
  EXPECT_EQ(in_shard(20), 2341u);
  EXPECT_EQ(in_shard(2), 2342u);
  EXPECT_EQ(in_shard(1) + shards[46].tensors.size(), 2340u);
  EXPECT_EQ(in_shard(14) + shards[47].tensors.size(), 2348u);
}

// Against the published counts of the EXL3 pack: 192,452 tensors in 41 shards, 219,267,406,428
// bytes on disk (some bit widths are inferred, hence the 0.1%); engram tables from the official
// shards 47 and 48.
TEST(FullSize, Exl3PackWithOfficialEngramTables) {
  const test::TempDir dir;
  const ModelConfig config = deepseek_v41_flash_config();
  const std::vector<io::ShardSpec> shards = sparse::exl3_shards(config);
  EXPECT_EQ(shards.size(), 41u);
  sparse::write_sparse(dir.file("pack"), shards, config);
  std::vector<io::ShardSpec> engram = sparse::official_shards(config);
  engram.erase(engram.begin(), engram.begin() + 46);
  sparse::write_sparse(dir.file("official"), engram, config);

  const io::Checkpoint pack = io::Checkpoint::open(dir.file("pack"));
  EXPECT_EQ(pack.tensors().size(), 192452u);
  int64_t file_bytes = 0;
  for (const io::MappedFile& file : pack.files()) file_bytes += int64_t(file.bytes().size());
  EXPECT_NEAR(double(file_bytes), 219267406428.0, 0.001 * 219267406428.0);
  const Account alone = account(pack, config);
  EXPECT_EQ(alone.num_errors, 2);
  EXPECT_THAT(alone.errors,
              ElementsAre(HasSubstr("\"layers.1.engram.embed.weight\": expected [384006168, 256]"),
                          HasSubstr("\"layers.14.engram.embed.weight\"")));

  const io::Checkpoint checkpoint = io::Checkpoint::open(
      dir.file("pack"), std::vector<io::ExtraDirectory>{{dir.file("official"), ".engram.embed."}});
  const Account result = account(checkpoint, config);
  EXPECT_THAT(result.errors, ElementsAre());
  EXPECT_EQ(result.total.num_tensors, 192452 + 4);
  expect_groups(result, {{TensorGroup::kRoutedExperts, 4 * 46080, -1},
                         {TensorGroup::kEngramTables, 4, 202758032400},
                         {TensorGroup::kVision, 266, 970536960},
                         {TensorGroup::kEngramProjections, 2 * 6, -1},
                         {TensorGroup::kGates, 80, -1}});
  int64_t num_exl3 = 0;
  for (const FormatTotals& format : result.formats)
    if (format.format == WeightFormat::kExl3) num_exl3 += format.num_matrices;
  EXPECT_EQ(num_exl3, 47900 - 1198);  // those of the draft layers are left alone
  const auto& experts =
      *std::find_if(result.formats.begin(), result.formats.end(),
                    [](const FormatTotals& format) { return format.detail == "mul1, 3 bits"; });
  EXPECT_EQ(experts.num_matrices, 46080);
}

// A small model whose every module lies in another format.
ModelConfig small_config() {
  ModelConfig config = deepseek_v41_flash_config();
  config.vocab_size = 256;
  config.hidden_size = 128;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 2;
  config.head_dim = 128;
  config.qk_rope_head_dim = 64;
  config.q_lora_rank = 128;
  config.o_groups = 2;
  config.o_lora_rank = 128;
  config.compress_ratios = {0};
  config.kv_source_layer_ids = {};
  config.index_source_layer_ids = {};
  config.candidate_source_layer_id = -1;
  config.moe_intermediate_size = 128;
  config.n_routed_experts = 1;
  config.num_experts_per_tok = 1;
  config.engram_layer_ids = {};
  config.engram_num_embeddings = {};
  validate(config, "small");
  return config;
}

using Specs = std::vector<io::TensorSpec>;

void erase_tensors(Specs& specs, const std::string& prefix) {
  std::erase_if(specs, [&](const io::TensorSpec& spec) { return spec.name.starts_with(prefix); });
}

// As the EXL3 pack has it, in one shard.
Specs small_specs() {
  Specs specs;
  for (io::ShardSpec& shard : sparse::exl3_shards(small_config()))
    for (io::TensorSpec& tensor : shard.tensors)
      if (!tensor.name.starts_with("mtp.") && !tensor.name.starts_with("vision.") &&
          !tensor.name.starts_with("aligner."))
        specs.push_back(std::move(tensor));
  return specs;
}

struct Opened {
  test::TempDir dir;
  std::unique_ptr<io::Checkpoint> checkpoint;

  explicit Opened(Specs specs) {
    sparse::write_sparse(dir.path(), {{"model.safetensors", std::move(specs)}}, small_config());
    checkpoint = std::make_unique<io::Checkpoint>(io::Checkpoint::open(dir.path()));
  }
  Account account() const { return model::account(*checkpoint, small_config()); }
};

TEST(Account, EveryFormatOfAMatrixIsRecognisedByItsTensors) {
  Specs specs = small_specs();
  const std::string expert = "layers.0.ffn.experts.0.";
  erase_tensors(specs, expert);
  // gate: EXL3 of two bits with the other codebook and legacy signs; up: EXL3 without a marker;
  // down: FP4.
  specs.push_back({expert + "w1.trellis", DType::kI16, {8, 8, 32}});
  specs.push_back({expert + "w1.su", DType::kI16, {8}});
  specs.push_back({expert + "w1.sv", DType::kI16, {8}});
  specs.push_back({expert + "w1.mcg", DType::kI32, {}});
  specs.push_back({expert + "w3.trellis", DType::kI16, {8, 8, 128}});
  specs.push_back({expert + "w3.suh", DType::kF16, {128}});
  specs.push_back({expert + "w3.svh", DType::kF16, {128}});
  specs.push_back({expert + "w2.weight", DType::kI8, {128, 64}});
  specs.push_back({expert + "w2.scale", DType::kF8E8m0, {128, 4}});
  erase_tensors(specs, "layers.0.attn.wo_a.");  // in one piece, FP8
  specs.push_back({"layers.0.attn.wo_a.weight", DType::kF8E4m3, {256, 128}});
  specs.push_back({"layers.0.attn.wo_a.scale", DType::kF8E8m0, {8, 4}});
  erase_tensors(specs, "head.");
  specs.push_back({"head.weight", DType::kBf16, {256, 128}});
  const Opened opened(specs);
  const Account result = opened.account();
  EXPECT_THAT(result.errors, ElementsAre());
  EXPECT_EQ(result.used.num_tensors + result.ignored.num_tensors, int64_t(specs.size()));

  const StoredLinear gate = *find_linear(*opened.checkpoint, expert + "w1", 128, 128);
  EXPECT_EQ(gate.format, WeightFormat::kExl3);
  EXPECT_EQ(gate.bits, 2);
  EXPECT_EQ(gate.codebook, exl3::Codebook::kMcg);
  EXPECT_TRUE(gate.in_signs_only && gate.out_signs_only);
  const StoredLinear up = *find_linear(*opened.checkpoint, expert + "w3", 128, 128);
  EXPECT_EQ(up.bits, 8);
  EXPECT_EQ(up.codebook, exl3::Codebook::k3Inst);
  EXPECT_FALSE(up.in_signs_only || up.out_signs_only);
  EXPECT_EQ(find_linear(*opened.checkpoint, expert + "w2", 128, 128)->format, WeightFormat::kFp4);
  EXPECT_EQ(find_linear(*opened.checkpoint, "layers.0.attn.wo_a", 256, 128)->format,
            WeightFormat::kFp8);
  EXPECT_EQ(find_linear(*opened.checkpoint, "layers.0.attn.wq_a", 128, 128)->codebook,
            exl3::Codebook::kMul1);
  EXPECT_EQ(find_linear(*opened.checkpoint, "head", 256, 128)->format, WeightFormat::kPlain);
  EXPECT_FALSE(find_linear(*opened.checkpoint, "layers.0.attn.nothing", 1, 1).has_value());

  const auto model = Model::load(io::Checkpoint::open(opened.dir.path()), small_config());
  EXPECT_EQ(model->num_layers(), 1);
}

struct Damage {
  const char* what;
  void (*apply)(Specs& specs);
  std::vector<const char*> expected;
};
void PrintTo(const Damage& damage, std::ostream* os) { *os << damage.what; }

io::TensorSpec& tensor(Specs& specs, const std::string& name) {
  return *std::find_if(specs.begin(), specs.end(),
                       [&](const io::TensorSpec& spec) { return spec.name == name; });
}

class AccountOfDamaged : public testing::TestWithParam<Damage> {};

TEST_P(AccountOfDamaged, NamesTheTensor) {
  Specs specs = small_specs();
  GetParam().apply(specs);
  const Opened opened(specs);
  const Account result = opened.account();
  ASSERT_EQ(result.num_errors, 1) << testing::PrintToString(result.errors);
  for (const char* part : GetParam().expected) EXPECT_THAT(result.errors[0], HasSubstr(part));
  EXPECT_THAT([&] { require_complete(result, *opened.checkpoint); },
              testing::ThrowsMessage<Error>(HasSubstr(result.errors[0])));
  // A load refuses it with the same words, before it reads a weight.
  EXPECT_THAT([&] { Model::load(io::Checkpoint::open(opened.dir.path()), small_config()); },
              testing::ThrowsMessage<Error>(HasSubstr(result.errors[0])));
}

INSTANTIATE_TEST_SUITE_P(
    , AccountOfDamaged,
    testing::Values(
        Damage{"tensor missing",
               [](Specs& s) { erase_tensors(s, "layers.0.ffn.gate.bias"); },
               {"\"layers.0.ffn.gate.bias\"", "expected [1]", "found none"}},
        Damage{"matrix missing",
               [](Specs& s) { erase_tensors(s, "layers.0.attn.wq_b."); },
               {"\"layers.0.attn.wq_b.weight\"", "expected [256, 128]", "found none"}},
        Damage{"slice missing",
               [](Specs& s) { erase_tensors(s, "layers.0.attn.wo_a.slice.1."); },
               {"\"layers.0.attn.wo_a.slice.1.trellis\"", "found none"}},
        Damage{"scale of a matrix missing",
               [](Specs& s) { erase_tensors(s, "layers.0.attn.wkv.svh"); },
               {"\"layers.0.attn.wkv.svh\"", "found none"}},
        Damage{"unknown tensor",
               [](Specs& s) {
                 s.push_back({"layers.0.attn.wq_c.weight", DType::kF32, {1}});
               },
               {"\"layers.0.attn.wq_c.weight\"", "unknown name", "model.safetensors"}},
        Damage{"layer too many",
               [](Specs& s) {
                 s.push_back({"layers.1.attn_norm.weight", DType::kF32, {1}});
               },
               {"\"layers.1.attn_norm.weight\"", "unknown name"}},
        Damage{"wrong shape",
               [](Specs& s) { tensor(s, "norm.weight").shape = {127}; },
               {"\"norm.weight\"", "expected the shape [128]", "found BF16 [127]"}},
        Damage{"wrong dtype",
               [](Specs& s) { tensor(s, "norm.weight").dtype = DType::kI16; },
               {"\"norm.weight\"", "expected F32, F16 or BF16", "found I16"}},
        Damage{"trellis of another size",
               [](Specs& s) {
                 tensor(s, "layers.0.attn.wkv.trellis").shape = {8, 16, 80};
               },
               {"\"layers.0.attn.wkv.trellis\"", "expected I16 [8, 8]", "found I16 [8, 16, 80]"}},
        Damage{"half bits",
               [](Specs& s) {
                 tensor(s, "layers.0.attn.wkv.trellis").shape = {8, 8, 40};
               },
               {"\"layers.0.attn.wkv.trellis\"", "found I16 [8, 8, 40]"}},
        Damage{"nine bits",
               [](Specs& s) {
                 tensor(s, "layers.0.attn.wkv.trellis").shape = {8, 8, 144};
               },
               {"\"layers.0.attn.wkv.trellis\"", "K from 1 to 8"}},
        Damage{"no bits",
               [](Specs& s) {
                 tensor(s, "layers.0.attn.wkv.trellis").shape = {8, 8, 0};
               },
               {"\"layers.0.attn.wkv.trellis\"", "K from 1 to 8"}},
        Damage{"two codebooks",
               [](Specs& s) {
                 s.push_back({"layers.0.attn.wkv.mcg", DType::kI32, {}});
               },
               {"\"layers.0.attn.wkv.mul1\"", "\"layers.0.attn.wkv.mcg\"", "found both"}},
        Damage{"two kinds of scales",
               [](Specs& s) {
                 s.push_back({"layers.0.attn.wkv.su", DType::kI16, {8}});
               },
               {"\"layers.0.attn.wkv.suh\"", "\"layers.0.attn.wkv.su\"", "found both"}},
        Damage{"two formats",
               [](Specs& s) {
                 s.push_back({"layers.0.attn.wkv.weight", DType::kF32, {128, 128}});
               },
               {"\"layers.0.attn.wkv.trellis\"", "found both"}},
        Damage{"a bias that the model does not have",
               [](Specs& s) {
                 s.push_back({"layers.0.attn.wkv.bias", DType::kF16, {128}});
               },
               {"\"layers.0.attn.wkv.bias\"", "unknown name"}},
        Damage{"plain matrix of integers",
               [](Specs& s) {
                 erase_tensors(s, "head.");
                 s.push_back({"head.weight", DType::kI32, {256, 128}});
               },
               {"\"head.weight\"", "found I32 [256, 128]"}},
        Damage{"fp8 without its scale",
               [](Specs& s) {
                 erase_tensors(s, "head.");
                 s.push_back({"head.weight", DType::kF8E4m3, {256, 128}});
               },
               {"\"head.scale\"", "found none"}},
        Damage{"fp8 with the scale of an expert",
               [](Specs& s) {
                 erase_tensors(s, "head.");
                 s.push_back({"head.weight", DType::kF8E4m3, {256, 128}});
                 s.push_back({"head.scale", DType::kF8E8m0, {256, 4}});
               },
               {"\"head.scale\"", "expected F8_E8M0 [8, 4]", "found F8_E8M0 [256, 4]"}}));

TEST(Account, KeepsTheFirstErrorsAndCountsAll) {
  Specs specs = small_specs();
  for (int i = 0; i < 50; ++i) specs.push_back({"x" + std::to_string(i), DType::kU8, {1}});
  const Opened opened(specs);
  const Account result = opened.account();
  EXPECT_EQ(result.num_errors, 50);
  EXPECT_EQ(result.errors.size(), Account::kMaxErrors);
  EXPECT_EQ(result.unknown.num_tensors, 50);
  EXPECT_EQ(result.unknown.bytes, 50);
}

TEST(Account, EngramTablesMayBePlain) {
  ModelConfig config = small_config();
  config.engram_layer_ids = {0};
  config.engram_num_embeddings = {77};
  const test::TempDir dir;
  std::vector<io::ShardSpec> shards = sparse::official_shards(config);
  sparse::write_sparse(dir.path(), shards, config);
  EXPECT_THAT(account(io::Checkpoint::open(dir.path()), config).errors, ElementsAre());
  for (io::ShardSpec& shard : shards)
    for (io::TensorSpec& spec : shard.tensors)
      if (spec.name == "layers.0.engram.embed.weight") {
        spec.dtype = DType::kF32;
        erase_tensors(shard.tensors, "layers.0.engram.embed.scale");
        break;
      }
  sparse::write_sparse(dir.path(), shards, config);
  EXPECT_THAT(account(io::Checkpoint::open(dir.path()), config).errors, ElementsAre());
}

}  // namespace
}  // namespace onecard::model
