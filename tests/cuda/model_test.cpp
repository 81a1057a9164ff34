// The whole model on a CUDA device against the plain CPU path: weights, caches and intermediates
// lie on the device, chunk boundaries anywhere, two sequences in a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "cuda/device.h"
#include "device/cuda_device.h"
#include "make_tiny_model/tiny_model.h"
#include "model/forward_runner.h"
#include "model/tiny_checkpoint.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace onecard::test {
namespace {

using engine::PrefillMode;

// Both keep activations in f32; the device also sums in f32. The same bound holds the vector
// kernels of the CPU to the published values (tests/model/forward_test.cpp).
constexpr double kTolerance = 1e-4;

constexpr int64_t kPromptTokens = 20;
constexpr int64_t kCapacity = 24;

class CudaModel : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no CUDA device here";
    device_.emplace(0);
  }

  /// A published model on both sides.
  void open(const std::string& name) {
    golden_ = load_golden("model/published.json");
    const json::Value& the_case = member(member(golden_, "cases"), name);
    tokens_ = ids(member(the_case, "tokens"));
    decode_ = ids(member(the_case, "decode_tokens"));
    // Enough for windows, lists and candidate blocks to be full; the emulator is slow.
    tokens_.resize(kPromptTokens);
    decode_.resize(4);  // run, recorded, and replayed at other positions
    const std::string config = json::dump(member(the_case, "config"));
    plain_.emplace(config);
    cuda_.emplace(config, Backend::kCuda);
  }

  RunOptions on_device(PrefillMode mode, std::vector<int64_t> chunks = {}) const {
    return {.mode = mode, .chunks = std::move(chunks), .device = &*device_};
  }

  /// Prefill and decode on the device and on the plain path.
  void compare(PrefillMode mode, const std::vector<int64_t>& chunks) {
    SCOPED_TRACE("mode " + std::to_string(int(mode)) + ", " + std::to_string(chunks.size()) +
                 " chunks");
    Runner plain(**plain_, {.mode = mode}, kCapacity);
    Runner device(**cuda_, on_device(mode, chunks), kCapacity);
    expect_close(device.prefill(tokens_), plain.prefill(tokens_), "prompt");
    expect_close(device.decode_all(decode_), plain.decode_all(decode_), "decode");
  }

  static void expect_close(const std::vector<Row>& got, const std::vector<Row>& want,
                           const char* what) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_LE(max_abs_error(got[i], want[i]), kTolerance) << what << ", row " << i;
  }

  std::optional<CudaDevice> device_;
  json::Value golden_;
  std::vector<int32_t> tokens_, decode_;
  std::optional<TinyModel> plain_, cuda_;
};

TEST_F(CudaModel, UnquantisedModelInChunks) {
  open("T-NQ");
  compare(PrefillMode::kFull, {});
  compare(PrefillMode::kExact, {7, 1, 12});
}

TEST_F(CudaModel, QuantisedModelInChunks) {
  open("T-QM");
  compare(PrefillMode::kExact, {3, 17});
  compare(PrefillMode::kBounded, {19, 1});
}

TEST_F(CudaModel, TwoSequencesInAStepChangeNothing) {
  open("T-NQ");  // the other sequences of T-QM come near rounding boundaries
  const std::vector<int32_t> other_prompt(tokens_.begin() + 5, tokens_.begin() + 12);
  Runner alone(**cuda_, on_device(PrefillMode::kExact), kCapacity);
  Runner first(**cuda_, on_device(PrefillMode::kExact), kCapacity);
  Runner second(**cuda_, on_device(PrefillMode::kExact), kCapacity);
  Runner plain(**plain_, {.mode = PrefillMode::kExact}, kCapacity);
  alone.prefill(other_prompt);
  first.prefill(std::span(tokens_).first(3));
  second.prefill(other_prompt);
  plain.prefill(other_prompt);
  engine::DecodeStep step(**cuda_, 2, kCapacity);
  const int64_t vocab = (*cuda_)->vocab_size();
  for (const int32_t token : decode_) {
    std::vector<float> logits(static_cast<size_t>(2 * vocab));
    const engine::DecodeStep::Row rows[] = {{&first.state(), decode_[0]}, {&second.state(), token}};
    step.run(device_->exec(), rows, View<float>(logits.data(), 2, vocab));
    const Row got(logits.begin() + vocab, logits.end());
    EXPECT_EQ(got, alone.decode(token));
    EXPECT_LE(max_abs_error(got, plain.decode(token)), kTolerance);
  }
}

TEST_F(CudaModel, ARestoredSequenceGoesOnAsTheFirst) {
  open("T-QM");
  Runner first(**cuda_, on_device(PrefillMode::kExact), kCapacity);
  first.prefill(tokens_);
  const model::Snapshot snapshot = first.state().snapshot(model::SequenceState::Windows::kAll);
  std::vector<std::byte> rows(size_t(first.state().global_rows_bytes(0, kPromptTokens)));
  first.state().read_global_rows(0, kPromptTokens, rows);
  Runner second(**cuda_, on_device(PrefillMode::kExact), kCapacity);
  second.state().restore(snapshot);
  second.state().write_global_rows(0, kPromptTokens, rows);
  EXPECT_EQ(second.decode_all(decode_), first.decode_all(decode_));

  // What leaves the device is what the plain path keeps, in the same places: positions, groups,
  // packed codes. A code may be a neighbour where a value lies at a rounding boundary.
  Runner plain(**plain_, {.mode = PrefillMode::kExact}, kCapacity);
  plain.prefill(tokens_);
  std::vector<std::byte> want(rows.size());
  plain.state().read_global_rows(0, kPromptTokens, want);
  int differing = 0;
  for (size_t i = 0; i < rows.size(); ++i) differing += rows[i] != want[i] ? 1 : 0;
  EXPECT_LE(differing, int(rows.size() / 100));
  EXPECT_EQ(plain.state().snapshot(model::SequenceState::Windows::kAll).bytes.size(),
            snapshot.bytes.size());
}

class Records final : public model::Observer {
 public:
  void observe(int64_t layer_idx, std::string_view name, View<const float> values) override {
    if (name == "layer_out")
      last_[layer_idx].assign(values.row(values.rows - 1), values.row(values.rows - 1) + 8);
  }
  void selected(int64_t layer_idx, int64_t position, std::span<const int32_t> groups) override {
    lists_[{layer_idx, position}].assign(groups.begin(), groups.end());
  }
  std::map<int64_t, Row> last_;
  std::map<std::pair<int64_t, int64_t>, std::vector<int32_t>> lists_;
};

TEST_F(CudaModel, LayersAndSelectionsAreSeenFromTheHost) {
  open("T-QM");
  Records on_cuda, on_plain;
  RunOptions options = on_device(PrefillMode::kFull);
  options.observer = &on_cuda;
  Runner device(**cuda_, options, kCapacity);
  device.prefill(tokens_);
  Runner plain(**plain_, {.observer = &on_plain}, kCapacity);
  plain.prefill(tokens_);
  EXPECT_EQ(on_cuda.lists_, on_plain.lists_);
  ASSERT_EQ(on_cuda.last_.size(), on_plain.last_.size());
  for (const auto& [layer_idx, values] : on_plain.last_)
    EXPECT_LE(max_abs_error(on_cuda.last_[layer_idx], values), kTolerance) << layer_idx;
}

struct Stored {
  const char* name;
  tiny::Storage storage;
  std::vector<std::pair<std::string, std::string>> members;  // of T-NQ, replaced
  double tolerance;                                          // of the root mean square of logits
};
void PrintTo(const Stored& stored, std::ostream* os) { *os << stored.name; }

class CudaModelStorage : public CudaModel, public testing::WithParamInterface<Stored> {};

TEST_P(CudaModelStorage, AsThePlainPath) {
  const TempDir dir;
  tiny::write_checkpoint(dir.path(),
                         tiny::with_members(tiny::preset_config("t-nq"), GetParam().members),
                         {.storage = GetParam().storage});
  const auto load = [&](Backend backend) {
    return model::Model::load(io::Checkpoint::open(dir.path()),
                              model::load_model_config(dir.path()), {.backend = backend});
  };
  const auto plain_model = load(Backend::kCpu), cuda_model = load(Backend::kCuda);
  EXPECT_GT(cuda_model->owned_bytes(), 0);
  // Of these tokens no value lies so near to a rounding boundary of the packed caches that the last
  // bits of a sum decide over its code.
  std::vector<int32_t> tokens;
  for (int i = 0; i < 19; ++i) tokens.push_back((i * 53 + 11) % int(plain_model->vocab_size()));
  Runner plain(*plain_model, {}, 20);
  Runner device(*cuda_model, on_device(PrefillMode::kFull, {18, 1}), 20);
  const std::vector<Row> want = plain.prefill(tokens), got = device.prefill(tokens);
  ASSERT_EQ(got.size(), want.size());
  double squares = 0, error_squares = 0;
  for (size_t t = 0; t < want.size(); ++t) {
    for (size_t i = 0; i < want[t].size(); ++i) {
      squares += double(want[t][i]) * want[t][i];
      error_squares += std::pow(double(got[t][i]) - want[t][i], 2);
    }
  }
  EXPECT_LE(std::sqrt(error_squares / squares), GetParam().tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    , CudaModelStorage,
    testing::Values(Stored{"bf16", tiny::Storage::kBf16, {}, kTolerance},
                    Stored{"fp8 and fp4", tiny::Storage::kFp8, {{"o_lora_rank", "32"}}, kTolerance},
                    Stored{"exl3",
                           tiny::Storage::kExl3,
                           {{"vocab_size", "128"},
                            {"hidden_size", "128"},
                            {"num_hidden_layers", "3"},
                            {"num_attention_heads", "2"},
                            {"head_dim", "128"},
                            {"qk_rope_head_dim", "32"},
                            {"q_lora_rank", "128"},
                            {"o_lora_rank", "128"},
                            {"compress_ratios", "[0,2,1]"},
                            {"kv_source_layer_ids", "[1,2]"},
                            {"index_n_heads", "2"},
                            {"index_source_layer_ids", "[1,2]"},
                            {"index_head_dim", "128"},
                            {"candidate_source_layer_id", "2"},
                            {"n_routed_experts", "4"},
                            {"moe_intermediate_size", "128"},
                            {"engram_layer_ids", "[]"}},
                           kTolerance}));

}  // namespace
}  // namespace onecard::test
