// onecard logits: a checkpoint's logits for given token ids, for comparing with other
// implementations. Needs no tokenizer.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/flag_values.h"
#include "cli/memory_check.h"
#include "device/exec.h"
#include "engine/decode_step.h"
#include "engine/prefill_pass.h"
#include "io/checkpoint.h"
#include "model/model.h"

namespace onecard::cli {
namespace {

struct LogitsFlags {
  std::string model;
  std::string tokens;
  std::string tokens_file;
  std::string chunks;
  std::string prefill;
  std::string positions = "last";
  std::string decode;
  std::string device = "auto";
  int64_t vram_limit_mib = 0;
  std::string isa;
  std::string expert_precision = "auto";
  int threads = 0;
  bool json = false;
  bool dump_layers = false;
};

engine::PrefillMode parse_mode(const std::string& name) {
  if (name == "full") return engine::PrefillMode::kFull;
  if (name == "exact") return engine::PrefillMode::kExact;
  if (name == "bounded") return engine::PrefillMode::kBounded;
  throw Error(ErrorCode::kInvalidArgument,
              "--prefill: expected full, exact or bounded, found \"" + name + "\"");
}

/// What the streams look like after each layer, from the last chunk.
class LayerDump final : public model::Observer {
 public:
  explicit LayerDump(int64_t hc_mult) : hc_mult_(hc_mult) {}

  void observe(int64_t layer_idx, std::string_view name, View<const float> values) override {
    if (name == "layer_out") {
      double sum = 0;
      for (int64_t t = 0; t < values.rows; ++t)
        for (int64_t c = 0; c < values.cols; ++c) sum += std::fabs(values.row(t)[c]);
      const float* last = values.row(values.rows - 1);
      layers_[layer_idx] = {values.rows,
                            sum / double(values.rows * values.cols),
                            {last, last + std::min<int64_t>(8, values.cols / hc_mult_)},
                            {}};
    } else if (name == "mix") {
      const std::span<float const> last = values.row_span(values.rows - 1);
      layers_[layer_idx].mix.assign(last.begin(), last.end());
    }
  }

  void print() const;

 private:
  struct Layer {
    int64_t rows = 0;
    double mean_abs = 0;
    std::vector<float> first;  // of stream 0 of the last token
    std::vector<float> mix;
  };
  int64_t hc_mult_;
  std::map<int64_t, Layer> layers_;
};

void print_row(std::span<const float> row) {
  std::fputc('[', stdout);
  for (size_t i = 0; i < row.size(); ++i) {
    if (i > 0) std::fputc(',', stdout);
    if (std::isfinite(row[i]))
      std::printf("%.9g", double(row[i]));
    else
      std::fputs("null", stdout);  // JSON has no word for it
  }
  std::fputc(']', stdout);
}

void print_rows(View<const float> rows) {
  std::fputc('[', stdout);
  for (int64_t t = 0; t < rows.rows; ++t) {
    if (t > 0) std::fputc(',', stdout);
    print_row(rows.row_span(t));
  }
  std::fputc(']', stdout);
}

void LayerDump::print() const {
  std::fputs(",\"layers\":[", stdout);
  bool first = true;
  for (const auto& [layer_idx, layer] : layers_) {
    std::printf(
        "%s{\"layer\":%lld,\"rows\":%lld,\"mean_abs\":%.9g,\"last_stream0\":", first ? "" : ",",
        static_cast<long long>(layer_idx), static_cast<long long>(layer.rows), layer.mean_abs);
    print_row(layer.first);
    std::fputs(",\"mix\":", stdout);
    print_row(layer.mix);
    std::fputc('}', stdout);
    first = false;
  }
  std::fputc(']', stdout);
}

void print_best(const std::string& what, std::span<const float> row) {
  std::vector<int32_t> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto count = std::min<size_t>(5, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + std::ptrdiff_t(count), ids.end(),
                    [&](int32_t a, int32_t b) { return row[size_t(a)] > row[size_t(b)]; });
  std::printf("%s:", what.c_str());
  for (size_t i = 0; i < count; ++i) std::printf("  %d %.5f", ids[i], double(row[size_t(ids[i])]));
  std::fputc('\n', stdout);
}

int run(const LogitsFlags& flags) {
  const std::string prompt_text =
      flags.tokens_file.empty() ? flags.tokens : io::read_text_file(flags.tokens_file, 64 << 20);
  const std::vector<int32_t> tokens = parse_numbers("--tokens", prompt_text);
  const std::vector<int32_t> decode = parse_numbers("--decode", flags.decode);
  const auto num_tokens = int64_t(tokens.size());
  require(num_tokens > 0, ErrorCode::kInvalidArgument, "--tokens: at least one token id is needed");

  std::vector<int32_t> chunks = parse_numbers("--chunks", flags.chunks);
  if (chunks.empty()) chunks.push_back(int32_t(num_tokens));
  if (std::accumulate(chunks.begin(), chunks.end(), int64_t{0}) != num_tokens ||
      std::find(chunks.begin(), chunks.end(), 0) != chunks.end())
    throw Error(ErrorCode::kInvalidArgument,
                "--chunks: must be positive and sum to the number of tokens, " +
                    std::to_string(num_tokens));

  std::vector<int32_t> positions;
  if (flags.positions == "all") {
    positions.resize(size_t(num_tokens));
    std::iota(positions.begin(), positions.end(), 0);
  } else if (flags.positions == "last") {
    positions.push_back(int32_t(num_tokens - 1));
  } else {
    positions = parse_numbers("--positions", flags.positions);
    for (const int32_t position : positions)
      if (position >= num_tokens)
        throw Error(ErrorCode::kInvalidArgument, "--positions: " + std::to_string(position) +
                                                     " is not in a prompt of " +
                                                     std::to_string(num_tokens) + " tokens");
  }
  const bool last_only = flags.positions == "last";
  const engine::PrefillMode mode = !flags.prefill.empty() ? parse_mode(flags.prefill)
                                   : last_only            ? engine::PrefillMode::kExact
                                                          : engine::PrefillMode::kFull;
  require(last_only || mode == engine::PrefillMode::kFull, ErrorCode::kInvalidArgument,
          "--positions: exact and bounded prefill give the last position only");

  ThreadPool pool(thread_count(flags.threads));
  const std::shared_ptr<const CudaDevice> device = open_device(flags.device);
  const Exec exec =
      device != nullptr ? device->exec() : Exec{.isa = parse_isa(flags.isa), .pool = &pool};
  const int64_t capacity = num_tokens + int64_t(decode.size());
  const int64_t longest_chunk = *std::max_element(chunks.begin(), chunks.end());
  const bool all_logits = mode == engine::PrefillMode::kFull && !last_only;
  io::Checkpoint checkpoint = io::Checkpoint::open(flags.model);
  const model::ModelConfig config = model::load_model_config(flags.model);
  check_memory(config,
               {.weight_bytes = weight_bytes(checkpoint),
                .context_length = capacity,
                .prefill_rows = engine::PrefillPass::workspace_rows(config, mode, longest_chunk),
                .tail_rows = engine::PrefillPass::workspace_rows(config, mode, 0),
                .logits_rows = (all_logits ? num_tokens : 1) + int64_t(decode.size()),
                .context_flag = "a number of tokens up to"},
               {.device = device.get(), .vram_limit_mib = flags.vram_limit_mib});
  const auto model =
      model::Model::load(std::move(checkpoint), config,
                         {.backend = exec.backend,
                          .expert_precision = parse_expert_precision(flags.expert_precision)});
  const int64_t vocab_size = model->vocab_size();

  model::SequenceState sequence(model->config(),
                                {.capacity_tokens = capacity, .backend = exec.backend});
  model::Workspace workspace(
      model->config(), engine::PrefillPass::workspace_rows(model->config(), mode, longest_chunk),
      capacity, exec.backend);
  engine::EncoderTail tail(model->config(), mode, exec.backend);
  LayerDump dump(model->config().hc_mult);
  Buffer<float> prompt_logits((all_logits ? num_tokens : 1) * vocab_size);
  const View<float> prompt_rows = prompt_logits.view(all_logits ? num_tokens : 1, vocab_size);
  int64_t begin = 0;
  for (const int32_t chunk : chunks) {
    const bool last = begin + chunk == num_tokens;
    View<float> rows = prompt_rows.rows_between(0, last ? 1 : 0);
    if (all_logits) rows = prompt_rows.rows_between(begin, begin + chunk);
    engine::PrefillPass pass(exec, *model, workspace, sequence, tail,
                             std::span<const int32_t>(tokens).subspan(size_t(begin), size_t(chunk)),
                             {mode, last, all_logits, flags.dump_layers ? &dump : nullptr}, rows);
    while (!pass.run_layer()) {
    }
    begin += chunk;
  }

  engine::DecodeStep step(*model, 1, capacity);
  Buffer<float> decode_logits(int64_t(decode.size()) * vocab_size);
  const View<float> decode_rows = decode_logits.view(int64_t(decode.size()), vocab_size);
  for (int64_t i = 0; i < decode_rows.rows; ++i) {
    const engine::DecodeStep::Row row{&sequence, decode[size_t(i)]};
    step.run(exec, {&row, 1}, decode_rows.rows_between(i, i + 1));
  }

  Buffer<float> asked(int64_t(positions.size()) * vocab_size);
  const View<float> asked_rows = asked.view(int64_t(positions.size()), vocab_size);
  for (size_t i = 0; i < positions.size(); ++i)
    std::copy_n(prompt_rows.row(all_logits ? positions[i] : 0), vocab_size,
                asked_rows.row(int64_t(i)));
  if (!flags.json) {
    for (size_t i = 0; i < positions.size(); ++i)
      print_best("position " + std::to_string(positions[i]), asked_rows.row_span(int64_t(i)));
    for (int64_t i = 0; i < decode_rows.rows; ++i)
      print_best("decode " + std::to_string(num_tokens + i), decode_rows.row_span(i));
    return 0;
  }
  std::fputs("{\"positions\":[", stdout);
  for (size_t i = 0; i < positions.size(); ++i) std::printf("%s%d", i > 0 ? "," : "", positions[i]);
  std::fputs("],\"logits\":", stdout);
  print_rows(asked_rows);
  std::fputs(",\"decode_logits\":", stdout);
  print_rows(decode_rows);
  if (flags.dump_layers) dump.print();
  std::fputs("}\n", stdout);
  return 0;
}

}  // namespace

void add_logits(CLI::App& app, Commands& commands) {
  auto flags = std::make_shared<LogitsFlags>();
  CLI::App* command = app.add_subcommand("logits", "Prints a checkpoint's logits for token ids");
  command->footer(R"(Example:
  onecard logits --model models/demo --tokens 0,5065,2406 --decode 5066)");
  command->add_option("--model", flags->model, "Checkpoint directory")->required();
  auto* tokens = command->add_option("--tokens", flags->tokens, "Prompt token ids: 1,2,3");
  command->add_option("--tokens-file", flags->tokens_file, "File of prompt token ids")
      ->excludes(tokens);
  command->add_option("--chunks", flags->chunks, "Tokens of each prefill chunk: 7,1,24");
  command->add_option("--prefill", flags->prefill,
                      "full, exact or bounded (default: exact; full when more than the last "
                      "position is asked for)");
  command->add_option("--positions", flags->positions,
                      "all, last, or positions: 0,7 (default: last)");
  command->add_option("--decode", flags->decode, "Token ids to feed after the prompt, one a step");
  command->add_option("--expert-precision", flags->expert_precision, "auto, exact, int16 or int8");
  command->add_option("--device", flags->device,
                      "cpu, cuda, or auto: cuda where there is one (default: auto)");
  command->add_option("--vram-limit-mib,--vram-limit", flags->vram_limit_mib,
                      "Device memory that may be used, in MiB (default: what is free)");
  command->add_option("--isa", flags->isa, "plain, avx2, ...: no wider kernels than this");
  command->add_option("--threads", flags->threads, "CPU threads (default: one a logical CPU)");
  command->add_flag("--json", flags->json, "Print all logits as JSON");
  command->add_flag("--dump-layers", flags->dump_layers,
                    "With --json: what the streams look like after each layer");
  command->callback([flags, &commands] { commands.selected = [flags] { return run(*flags); }; });
}

}  // namespace onecard::cli
