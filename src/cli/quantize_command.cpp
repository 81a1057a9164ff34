// onecard quantize: a checkpoint under its official names into an EXL3 pack.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/text_documents.h"
#include "device/cpu/isa.h"
#include "engine/prefill_pass.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "model/config.h"
#include "model/model.h"
#include "model/sequence_state.h"
#include "quantize/calibration.h"
#include "quantize/checkpoint_quantizer.h"
#include "tensor/buffer.h"
#include "text/engram_map.h"
#include "text/tokenizer.h"

namespace onecard::cli {
namespace {

using quantize::ModuleReport;
using quantize::PackItem;
using quantize::Progress;
using Clock = std::chrono::steady_clock;

constexpr const char* kEngramMapFile = "engram_token_map.i32";
constexpr int64_t kMaxFileBytes = 256 << 20;
constexpr int64_t kCalibrationRows = 512;  // of one pass of the calibration

struct QuantizeFlags {
  std::string source;
  std::string destination;
  quantize::PackBits bits;
  std::string codebook = "mul1";
  bool narrow_f32 = false;
  int threads = int(std::max(1u, std::thread::hardware_concurrency()));
  int64_t shard_mib = 8192;
  std::string calibration;  // JSON lines: a string each, a document with its special tokens
  int64_t calibration_tokens = 8192;
};

// Reads every document with the unquantised model, every layer on every token; returns the number
// of tokens.
int64_t calibrate(const Exec& exec, const std::string& source, const model::ModelConfig& config,
                  const std::vector<std::vector<text::TokenId>>& documents,
                  quantize::Calibration& calibration) {
  const auto model = model::Model::load(io::Checkpoint::open(source), config);
  int64_t longest = 0, total = 0;
  for (const auto& tokens : documents) longest = std::max(longest, int64_t(tokens.size()));
  const auto mode = engine::PrefillMode::kFull;
  model::SequenceState sequence(config, {.capacity_tokens = longest});
  model::Workspace workspace(
      config,
      engine::PrefillPass::workspace_rows(config, mode, std::min(longest, kCalibrationRows)),
      longest);
  engine::EncoderTail tail(config, mode);
  Buffer<float> logits(kCalibrationRows * config.vocab_size);
  for (const auto& tokens : documents) {
    sequence.clear();
    tail.clear();
    for (int64_t begin = 0; begin < int64_t(tokens.size()); begin += kCalibrationRows) {
      const int64_t rows = std::min(kCalibrationRows, int64_t(tokens.size()) - begin);
      engine::PrefillOptions options;
      options.mode = mode;
      options.last = begin + rows == int64_t(tokens.size());
      options.all_logits = true;  // the head's input is shown for every token
      options.observer = &calibration;
      engine::PrefillPass pass(exec, *model, workspace, sequence, tail,
                               std::span(tokens).subspan(size_t(begin), size_t(rows)), options,
                               logits.view(rows, config.vocab_size));
      while (!pass.run_layer()) {
      }
    }
    total += int64_t(tokens.size());
    std::fprintf(stderr, "calibration: %lld tokens read\n", (long long)total);
  }
  return total;
}

std::string duration_text(double seconds) {
  const auto whole = int64_t(seconds);
  std::string text;
  if (whole >= 3600) text += std::to_string(whole / 3600) + "h";
  if (whole >= 60) text += std::to_string(whole / 60 % 60) + "m";
  return text + std::to_string(whole % 60) + "s";
}

// A line for every matrix: what it became and how long the rest takes.
class ProgressLines {
 public:
  void operator()(const Progress& progress, const ModuleReport& report) const {
    if (progress.weights_this_run == 0) return;  // found finished
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    const double rate = double(progress.weights_this_run) / std::max(seconds, 1e-9);
    const double left = double(progress.num_weights - progress.weights_done) / rate;
    std::fprintf(stderr, "%lld/%lld %s K=%d error %.5f", (long long)progress.modules_done,
                 (long long)progress.num_modules, report.module.c_str(), report.bits,
                 report.relative_error);
    if (report.proxy_error) std::fprintf(stderr, " output error %.5f", *report.proxy_error);
    std::fprintf(stderr, "  %.2f Mweights/s, %s left\n", rate / 1e6, duration_text(left).c_str());
  }

 private:
  Clock::time_point start_ = Clock::now();
};

exl3::Codebook codebook_from_name(const std::string& name) {
  if (name == "mul1") return exl3::Codebook::kMul1;
  if (name == "mcg") return exl3::Codebook::kMcg;
  return exl3::Codebook::k3Inst;
}

// The files of the source that a pack needs beside its tensors. The n-gram memory's id map is made
// when the source has none.
std::vector<std::pair<std::string, std::string>> pack_files(const std::string& source,
                                                            const model::ModelConfig& config) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                           "special_tokens_map.json", "chat_template.jinja", kEngramMapFile}) {
    const std::string path = source + "/" + name;
    if (std::filesystem::exists(path))
      files.emplace_back(name, io::read_text_file(path, kMaxFileBytes));
  }
  const auto has = [&](const char* name) {
    return std::any_of(files.begin(), files.end(), [&](const auto& f) { return f.first == name; });
  };
  if (config.engram_layer_ids.empty() || has(kEngramMapFile) || !has("tokenizer.json"))
    return files;
  const auto map = text::build_engram_map(text::Tokenizer::load(source + "/tokenizer.json"));
  files.emplace_back(kEngramMapFile,
                     std::string(reinterpret_cast<const char*>(map.compressed_ids.data()),
                                 map.compressed_ids.size() * sizeof(int32_t)));
  return files;
}

void list_plain_matrices(const io::Checkpoint& source, const quantize::PackOptions& options) {
  for (const PackItem& item : quantize::plan_pack(source, options)) {
    const std::string module = item.source.substr(0, item.source.rfind('.'));
    if (item.kind == PackItem::Kind::kQuantize || quantize::bits_of(module, options.bits) == 0 ||
        item.source.compare(module.size(), std::string::npos, ".weight") != 0)
      continue;
    std::fprintf(stderr, "%s stays as it is: its dimensions are no multiples of 128\n",
                 module.c_str());
  }
}

int run_quantize(const QuantizeFlags& flags) {
  const io::Checkpoint source = io::Checkpoint::open(flags.source);
  const model::ModelConfig config = model::load_model_config(flags.source);
  quantize::QuantizeCheckpointOptions options;
  options.pack.bits = flags.bits;
  options.pack.codebook = codebook_from_name(flags.codebook);
  options.pack.o_groups = config.o_groups;
  options.pack.narrow_f32 = flags.narrow_f32;
  options.shard_bytes = flags.shard_mib << 20;
  options.files = pack_files(flags.source, config);
  options.on_module = ProgressLines();

  ThreadPool pool(flags.threads);
  Exec exec;
  exec.isa = cpu::detect_isa();
  exec.pool = &pool;
  list_plain_matrices(source, options.pack);
  quantize::Calibration calibration(exec, source, config);
  if (!flags.calibration.empty()) {
    options.calibration_tokens = calibrate(
        exec, flags.source, config,
        read_documents("--calibration", flags.calibration, flags.source, flags.calibration_tokens),
        calibration);
    options.calibration = std::filesystem::path(flags.calibration).filename().string() + ", " +
                          std::to_string(options.calibration_tokens) + " tokens";
    options.hessians = &calibration;
  }
  quantize::quantize_checkpoint(exec, source, flags.destination, options);
  const io::Checkpoint made = io::Checkpoint::open(flags.destination);
  std::fprintf(stderr, "%s: %zu tensors, %lld bytes (source: %lld)\n", flags.destination.c_str(),
               made.tensors().size(), (long long)made.total_bytes(),
               (long long)source.total_bytes());
  return 0;
}

}  // namespace

void add_quantize(CLI::App& app, Commands& commands) {
  const auto flags = std::make_shared<QuantizeFlags>();
  CLI::App* command = app.add_subcommand("quantize", "Makes an EXL3 pack of a checkpoint");
  command->footer(R"(Example:
  onecard quantize checkpoint pack --bits 3)");
  command->add_option("source", flags->source, "The checkpoint's directory")->required();
  command->add_option("destination", flags->destination, "The pack's directory, made here")
      ->required();
  const auto bits = [&](const char* name, int& value, const char* what) {
    command->add_option(name, value, what)->check(CLI::Range(1, 8))->capture_default_str();
  };
  bits("--bits", flags->bits.experts, "Bits a weight of the routed experts");
  bits("--bits-shared", flags->bits.shared, "Bits a weight of the shared experts");
  bits("--bits-attn", flags->bits.attention, "Bits a weight of attention, compressor and indexer");
  bits("--bits-engram", flags->bits.engram, "Bits a weight of the n-gram memory's projection");
  bits("--bits-head", flags->bits.head, "Bits a weight of the output head");
  bits("--bits-draft", flags->bits.draft, "Bits a weight of the draft layers");
  command->add_option("--codebook", flags->codebook, "Codebook of the weights")
      ->check(CLI::IsMember({"mul1", "mcg", "3inst"}))
      ->capture_default_str();
  command->add_flag("--narrow-f32", flags->narrow_f32,
                    "Write plain F32 matrices (hyper-connections) as F16");
  command->add_option("--calibration", flags->calibration,
                      "Text for error feedback: JSON lines, each a string. It is read with the "
                      "unquantised model, all moments in memory");
  command->add_option("--calibration-tokens", flags->calibration_tokens, "Tokens read of it")
      ->check(CLI::Range(int64_t(1), int64_t(1) << 40))
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "CPU threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--shard-mib", flags->shard_mib, "Size of a shard")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->callback(
      [&commands, flags] { commands.selected = [flags] { return run_quantize(*flags); }; });
}

}  // namespace onecard::cli
