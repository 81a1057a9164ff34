// onecard inspect: what a checkpoint directory holds, and whether it is complete.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "base/json.h"
#include "cli/commands.h"
#include "io/checkpoint.h"
#include "model/config.h"
#include "model/tensor_table.h"

namespace onecard::cli {
namespace {

using model::Account;
using model::ModelConfig;

struct InspectOptions {
  std::string model_dir;
  std::string engram_dir;
  bool json = false;
};

json::Value to_json(const model::TensorTotals& totals) {
  return json::Value::object({{"tensors", json::Value::integer(totals.num_tensors)},
                              {"bytes", json::Value::integer(totals.bytes)}});
}

json::Value to_json(const ModelConfig& config, const io::Checkpoint& checkpoint,
                    const Account& account) {
  json::Value groups = json::Value::object();
  for (int i = 0; i < model::kNumTensorGroups; ++i)
    groups.set(model::tensor_group_name(model::TensorGroup(i)), to_json(account.groups[size_t(i)]));
  json::Value formats = json::Value::array();
  for (const model::FormatTotals& totals : account.formats)
    formats.items().push_back(json::Value::object(
        {{"format", json::Value::string(model::weight_format_name(totals.format))},
         {"detail", json::Value::string(totals.detail)},
         {"matrices", json::Value::integer(totals.num_matrices)}}));
  json::Value errors = json::Value::array();
  for (const std::string& error : account.errors)
    errors.items().push_back(json::Value::string(error));
  return json::Value::object({{"files", json::Value::integer(int64_t(checkpoint.files().size()))},
                              {"config", json::parse(model::model_config_json(config))},
                              {"groups", std::move(groups)},
                              {"used", to_json(account.used)},
                              {"ignored", to_json(account.ignored)},
                              {"unknown", to_json(account.unknown)},
                              {"total", to_json(account.total)},
                              {"formats", std::move(formats)},
                              {"num_errors", json::Value::integer(account.num_errors)},
                              {"errors", std::move(errors)}});
}

void print_row(const char* name, const model::TensorTotals& totals) {
  std::printf("  %-20s %9lld %18lld\n", name, static_cast<long long>(totals.num_tensors),
              static_cast<long long>(totals.bytes));
}

// "swa 0-1, full 2, reuse 3-7, ..."
std::string layer_map(const ModelConfig& config) {
  std::string text;
  for (int64_t begin = 0; begin < config.num_hidden_layers;) {
    int64_t end = begin + 1;
    while (end < config.num_hidden_layers && config.mode(end) == config.mode(begin)) ++end;
    text += (begin == 0 ? "" : ", ") + std::string(layer_mode_name(config.mode(begin))) + " " +
            std::to_string(begin);
    if (end > begin + 1) text += "-" + std::to_string(end - 1);
    begin = end;
  }
  return text;
}

void print_text(const ModelConfig& config, const io::Checkpoint& checkpoint,
                const Account& account) {
  const auto number = [](int64_t value) { return static_cast<long long>(value); };
  std::printf("%s: %zu files\n", checkpoint.directory().c_str(), checkpoint.files().size());
  std::printf("layers      %lld: %s\n", number(config.num_hidden_layers),
              layer_map(config).c_str());
  std::printf("sizes       hidden %lld, vocabulary %lld, context %lld\n",
              number(config.hidden_size), number(config.vocab_size),
              number(config.max_position_embeddings));
  std::printf("attention   %lld heads of %lld, window %lld, top %lld of the compressed tokens\n",
              number(config.num_attention_heads), number(config.head_dim),
              number(config.sliding_window), number(config.index_topk));
  std::printf("experts     %lld of %lld a token, inner size %lld\n",
              number(config.num_experts_per_tok), number(config.n_routed_experts),
              number(config.moe_intermediate_size));
  if (!config.engram_layer_ids.empty()) {
    std::printf("engram      ");
    for (size_t i = 0; i < config.engram_layer_ids.size(); ++i)
      std::printf("%slayer %lld: %lld rows", i == 0 ? "" : ", ", number(config.engram_layer_ids[i]),
                  number(config.engram_num_embeddings[i]));
    std::printf(" of %lld\n", number(config.engram_head_dim));
  }
  std::printf("matrices   ");
  for (const model::FormatTotals& totals : account.formats)
    std::printf(" %lld %s%s%s%s;", number(totals.num_matrices),
                model::weight_format_name(totals.format), totals.detail.empty() ? "" : " (",
                totals.detail.c_str(), totals.detail.empty() ? "" : ")");
  std::printf("\n\n  %-20s %9s %18s\n", "group", "tensors", "bytes");
  for (int i = 0; i < model::kNumTensorGroups; ++i)
    if (account.groups[size_t(i)].num_tensors > 0)
      print_row(model::tensor_group_name(model::TensorGroup(i)), account.groups[size_t(i)]);
  print_row("unknown", account.unknown);
  print_row("total", account.total);
  std::printf("\n");
  print_row("used", account.used);
  print_row("known, not used", account.ignored);
  for (const std::string& error : account.errors) std::printf("error: %s\n", error.c_str());
  if (account.num_errors > int64_t(account.errors.size()))
    std::printf("error: and %lld more\n",
                number(account.num_errors - int64_t(account.errors.size())));
  std::printf(account.ok() ? "\ncomplete\n" : "\nNOT complete\n");
}

int inspect(const InspectOptions& options) {
  const ModelConfig config = model::load_model_config(options.model_dir);
  std::vector<io::ExtraDirectory> extra;
  if (!options.engram_dir.empty()) extra.push_back({options.engram_dir, ".engram.embed."});
  const io::Checkpoint checkpoint = io::Checkpoint::open(options.model_dir, extra);
  const Account account = model::account(checkpoint, config);
  if (options.json)
    std::printf("%s\n", json::dump(to_json(config, checkpoint, account)).c_str());
  else
    print_text(config, checkpoint, account);
  return account.ok() ? 0 : 1;
}

}  // namespace

void add_inspect(CLI::App& app, Commands& commands) {
  const auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Checks a checkpoint directory and says what is in it, without reading weights");
  command->footer(R"(Example:
  onecard inspect --model models/demo

Exit code: 0 everything the configuration asks for is there, 1 it is not, 2 the call was wrong.)");
  command->add_option("--model", options->model_dir, "The checkpoint's directory")->required();
  command->add_option("--engram-dir", options->engram_dir,
                      "Another directory that has the engram tables");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback(
      [options, &commands] { commands.selected = [options] { return inspect(*options); }; });
}

}  // namespace onecard::cli
