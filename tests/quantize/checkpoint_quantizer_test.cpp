#include "quantize/checkpoint_quantizer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "io/file.h"
#include "model/stored_linear.h"
#include "quant/exl3/reconstruct.h"
#include "quantize/source_matrix.h"
#include "support/temp_dir.h"
#include "tensor/dtype.h"

namespace onecard::quantize {
namespace {

namespace fs = std::filesystem;

// A little of everything that a checkpoint has, under its official names.
const std::vector<io::TensorSpec> kSource{
    {"embed.weight", DType::kBf16, {10, 128}},
    {"head.weight", DType::kF32, {128, 128}},
    {"layers.0.hc_attn_fn", DType::kF32, {4, 64}},
    {"layers.0.attn.wq_a.weight", DType::kF16, {128, 128}},
    {"layers.0.attn.wo_a.scale", DType::kF8E8m0, {8, 4}},
    {"layers.0.attn.wo_a.weight", DType::kF8E4m3, {256, 128}},
    {"layers.0.attn.indexer.wk.weight", DType::kBf16, {64, 128}},
    {"layers.0.ffn.experts.0.w1.scale", DType::kF8E8m0, {128, 4}},
    {"layers.0.ffn.experts.0.w2.scale", DType::kF8E8m0, {128, 4}},
    {"layers.0.ffn.experts.0.w3.scale", DType::kF8E8m0, {128, 4}},
    {"layers.0.ffn.experts.0.w1.weight", DType::kI8, {128, 64}},
    {"layers.0.ffn.experts.0.w2.weight", DType::kI8, {128, 64}},
    {"layers.0.ffn.experts.0.w3.weight", DType::kI8, {128, 64}},
    {"layers.0.engram.embed.weight", DType::kF8E4m3, {33, 64}},
    {"layers.0.engram.embed.scale", DType::kF8E8m0, {33, 2}},
    {"mtp.0.main_proj.weight", DType::kBf16, {128, 256}},
};

void write_source(const std::string& directory) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  io::SafetensorsWriter writer(directory, io::plan_shards(kSource, 1 << 30));
  for (const io::TensorSpec& tensor : kSource) {
    std::string bytes;
    const int64_t count = tensor.size_bytes() / dtype_size(tensor.dtype);
    for (int64_t i = 0; i < count; ++i) {
      const float value = normal(random);
      const uint16_t half = tensor.dtype == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
      const uint8_t byte = tensor.dtype == DType::kF8E4m3   ? f32_to_e4m3(value)
                           : tensor.dtype == DType::kF8E8m0 ? uint8_t(124 + random() % 5)
                                                            : uint8_t(random());
      const int64_t size = dtype_size(tensor.dtype);
      bytes.append(size == 4   ? reinterpret_cast<const char*>(&value)
                   : size == 2 ? reinterpret_cast<const char*>(&half)
                               : reinterpret_cast<const char*>(&byte),
                   size_t(size));
    }
    writer.append(tensor.name, std::as_bytes(std::span(bytes)));
  }
  writer.finish();
  io::write_file_atomically(directory + "/config.json",
                            R"({"vocab_size":10,"quantization_config":{"quant_method":"fp8"}})");
}

class CheckpointQuantizer : public testing::Test {
 protected:
  CheckpointQuantizer() {
    write_source(temp_.file("source"));
    exec_.isa = std::min(cpu::detect_isa(), cpu::Isa::kAvx2);
    options_.pack.o_groups = 2;
    options_.files.emplace_back("tokenizer.json", "{}");
  }

  void run(const std::string& name) {
    quantize_checkpoint(exec_, io::Checkpoint::open(temp_.file("source")), temp_.file(name),
                        options_);
  }

  // Every file of a directory, by name.
  std::map<std::string, std::string> files(const std::string& name) {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::directory_iterator(temp_.file(name)))
      all[entry.path().filename()] = io::read_text_file(entry.path(), 1 << 30);
    return all;
  }

  test::TempDir temp_;
  Exec exec_;
  QuantizeCheckpointOptions options_;
};

// The EXL3 matrix of a pack as [out, in].
std::vector<float> decoded(const io::Checkpoint& pack, const std::string& module, int64_t out,
                           int64_t in, int bits) {
  const auto stored = model::find_linear(pack, module, out, in);
  if (!stored || stored->format != model::WeightFormat::kExl3) {
    ADD_FAILURE() << module << " is not EXL3";
    return {};
  }
  EXPECT_EQ(stored->bits, bits) << module;
  EXPECT_EQ(stored->codebook, exl3::Codebook::kMul1) << module;
  const auto copy = [](const io::StoredTensor& tensor) {
    std::vector<uint16_t> values(tensor.bytes.size() / 2);
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    return values;
  };
  const auto trellis = copy(*stored->trellis), suh = copy(*stored->in_scale),
             svh = copy(*stored->out_scale);
  exl3::MatrixView matrix;
  matrix.in_features = in;
  matrix.out_features = out;
  matrix.bits = stored->bits;
  matrix.codebook = stored->codebook;
  matrix.data = reinterpret_cast<const std::byte*>(trellis.data());
  matrix.suh = suh;
  matrix.svh = svh;
  std::vector<float> transposed(size_t(in * out)), w(transposed.size());
  exl3::reconstruct(matrix, {transposed.data(), in, out});
  for (int64_t i = 0; i < in; ++i)
    for (int64_t o = 0; o < out; ++o) w[size_t(o * in + i)] = transposed[size_t(i * out + o)];
  return w;
}

TEST_F(CheckpointQuantizer, EveryMatrixIsItsSourceAndTheRestIsCopied) {
  run("pack");
  const auto source = io::Checkpoint::open(temp_.file("source"));
  const auto pack = io::Checkpoint::open(temp_.file("pack"));
  const auto expect_near = [&](const std::string& module, const std::string& from, int64_t rows,
                               int64_t begin, int64_t out, int64_t in, int bits) {
    const auto want = read_matrix(source, from, rows, begin, out, in);
    const auto got = decoded(pack, module, out, in, bits);
    double error = 0, energy = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(double(got[i]) - double(want[int64_t(i)]), 2);
      energy += std::pow(double(want[int64_t(i)]), 2);
    }
    EXPECT_LE(error, std::pow(4.0, -bits) * 1.6 * energy) << module;  // a little over the code's
  };
  expect_near("head", "head", 128, 0, 128, 128, 6);
  expect_near("layers.0.attn.wq_a", "layers.0.attn.wq_a", 128, 0, 128, 128, 5);
  expect_near("layers.0.attn.wo_a.slice.0", "layers.0.attn.wo_a", 256, 0, 128, 128, 5);
  expect_near("layers.0.attn.wo_a.slice.1", "layers.0.attn.wo_a", 256, 128, 128, 128, 5);
  for (const char* w : {"w1", "w2", "w3"}) {
    const std::string module = std::string("layers.0.ffn.experts.0.") + w;
    expect_near(module, module, 128, 0, 128, 128, 3);
  }
  expect_near("mtp.0.main_proj", "mtp.0.main_proj", 128, 0, 128, 256, 4);

  for (const char* name : {"embed.weight", "layers.0.hc_attn_fn", "layers.0.attn.indexer.wk.weight",
                           "layers.0.engram.embed.weight", "layers.0.engram.embed.scale"}) {
    const auto& want = source.at(name);
    const auto& got = pack.at(name);
    EXPECT_EQ(got.dtype, want.dtype) << name;
    EXPECT_TRUE(
        std::equal(got.bytes.begin(), got.bytes.end(), want.bytes.begin(), want.bytes.end()))
        << name;
  }
  EXPECT_EQ(pack.tensors().size(), 8u * 4 + 5);

  // The matrices of an expert lie behind each other: suh, svh, mul1, trellis of w1, w2, w3.
  const std::string expert = "layers.0.ffn.experts.0.";
  const auto end_of = [&](const std::string& name) {
    return pack.at(name).offset_bytes + int64_t(pack.at(name).bytes.size());
  };
  EXPECT_EQ(end_of(expert + "w1.suh"), pack.at(expert + "w1.svh").offset_bytes);
  EXPECT_EQ(end_of(expert + "w1.mul1"), pack.at(expert + "w1.trellis").offset_bytes);
  EXPECT_EQ(end_of(expert + "w1.trellis"), pack.at(expert + "w2.suh").offset_bytes);
  EXPECT_EQ(end_of(expert + "w2.trellis"), pack.at(expert + "w3.suh").offset_bytes);

  const auto config = json::parse(io::read_text_file(temp_.file("pack/config.json"), 1 << 20));
  const json::Value* quantization = config.find("quantization_config");
  ASSERT_NE(quantization, nullptr);
  EXPECT_EQ(quantization->find("quant_method")->as_string(), "exl3");
  EXPECT_EQ(*quantization->find("head_bits")->as_int64(), 6);
  EXPECT_EQ(quantization->find("original_quantization_config")->find("quant_method")->as_string(),
            "fp8");
  EXPECT_EQ(*config.find("vocab_size")->as_int64(), 10);
  EXPECT_EQ(files("pack").at("tokenizer.json"), "{}");
  EXPECT_FALSE(fs::exists(temp_.file("pack.partial")));
}

// Killed twice, each time in the middle of a matrix: nothing is flushed, closed or unwound.
TEST_F(CheckpointQuantizer, AKilledRunContinuesToTheSameBytes) {
  options_.shard_bytes = 30000;  // several shards
  run("whole");
  EXPECT_GE(files("whole").size(), 6u);
  const std::string name = "killed";
  for (const int kill_after : {1, 3}) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int made = 0;
      options_.on_module = [&](const Progress& progress, const ModuleReport&) {
        if (progress.weights_this_run == 0) return;  // found finished
        if (write(ends[1], "m", 1) != 1) _exit(1);
        while (++made > kill_after) pause();  // it never ends by itself
      };
      run(name);
      _exit(1);
    }
    close(ends[1]);
    char byte;
    for (int i = 0; i < kill_after; ++i) ASSERT_EQ(read(ends[0], &byte, 1), 1);
    ASSERT_EQ(kill(child, SIGKILL), 0);
    close(ends[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    EXPECT_FALSE(fs::exists(temp_.file(name)));
  }
  int64_t again = 0;
  options_.on_module = [&](const Progress& progress, const ModuleReport&) {
    again = progress.weights_this_run;
    EXPECT_LE(progress.weights_done, progress.num_weights);
  };
  run(name);
  EXPECT_EQ(files(name), files("whole"));
  EXPECT_LE(again, (9 - 1 - 3) * 128 * 128) << "finished matrices are not made again";
}

TEST_F(CheckpointQuantizer, RefusesToMixOptionsAndToOverwrite) {
  options_.on_module = [](const Progress&, const ModuleReport&) {
    throw Error(ErrorCode::kCancelled, "stopped by the test");
  };
  EXPECT_THROW(run("pack"), Error);
  options_.on_module = nullptr;
  options_.pack.bits.experts = 4;
  EXPECT_THROW(run("pack"), Error);
  options_.pack.bits.experts = 3;
  fs::create_directory(temp_.file("pack"));
  EXPECT_THROW(run("pack"), Error);
}

TEST_F(CheckpointQuantizer, NarrowedMatricesAreRoundedToF16) {
  options_.pack.narrow_f32 = true;
  run("pack");
  const auto source = io::Checkpoint::open(temp_.file("source"));
  const auto pack = io::Checkpoint::open(temp_.file("pack"));
  const auto& narrow = pack.at("layers.0.hc_attn_fn");
  ASSERT_EQ(narrow.dtype, DType::kF16);
  const auto& wide = source.at("layers.0.hc_attn_fn");
  for (size_t i = 0; i < 4 * 64; ++i) {
    float value;
    uint16_t bits;
    std::memcpy(&value, wide.bytes.data() + 4 * i, 4);
    std::memcpy(&bits, narrow.bytes.data() + 2 * i, 2);
    EXPECT_EQ(bits, f32_to_f16(value));
  }
}

TEST(PackPlan, BitsByName) {
  const PackBits bits{3, 5, 6, 7, 8, 4};
  EXPECT_EQ(bits_of("layers.3.ffn.experts.17.w2", bits), 3);
  EXPECT_EQ(bits_of("layers.3.ffn.shared_experts.w1", bits), 5);
  EXPECT_EQ(bits_of("layers.3.attn.wq_a", bits), 6);
  EXPECT_EQ(bits_of("layers.2.attn.compressor.wgate", bits), 6);
  EXPECT_EQ(bits_of("layers.2.attn.indexer.wq_b", bits), 6);
  EXPECT_EQ(bits_of("layers.1.engram.wkv", bits), 7);
  EXPECT_EQ(bits_of("head", bits), 8);
  EXPECT_EQ(bits_of("mtp.0.ffn.experts.5.w3", bits), 4);
  EXPECT_EQ(bits_of("mtp.2.attn.wkv", bits), 4);
  for (const char* plain : {"embed", "norm", "layers.0.attn.q_norm", "layers.0.ffn.gate",
                            "layers.2.attn.indexer.weights_proj", "layers.1.engram.embed",
                            "mtp.2.markov_head.head", "layers.2.attn.compressor.norm"})
    EXPECT_EQ(bits_of(plain, bits), 0) << plain;
}

}  // namespace
}  // namespace onecard::quantize
