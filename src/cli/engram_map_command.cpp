// onecard engram-map: writes the token map of the n-gram memory, which checkpoints come without.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/error.h"
#include "cli/commands.h"
#include "model/config.h"
#include "text/engram_map.h"
#include "text/tokenizer.h"

namespace onecard::cli {
namespace {

struct EngramMapFlags {
  std::string model_dir;
  std::string out_path;
};

std::string little_endian(const std::vector<int32_t>& values) {
  std::string bytes;
  bytes.reserve(values.size() * sizeof(int32_t));
  for (const int32_t value : values)
    for (int shift = 0; shift < 32; shift += 8)
      bytes += static_cast<char>(static_cast<uint32_t>(value) >> shift & 0xFF);
  return bytes;
}

// All of the file or none of it.
void write_file(const std::string& path, const std::string& bytes) {
  const std::string partial = path + ".partial";
  std::ofstream file(partial, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  std::error_code failure;
  if (file) std::filesystem::rename(partial, path, failure);
  if (!file || failure) throw Error(ErrorCode::kIo, path + ": cannot be written");
}

int write_engram_map(const EngramMapFlags& flags) {
  const model::ModelConfig config = model::load_model_config(flags.model_dir);
  const auto tokenizer = text::Tokenizer::load(flags.model_dir + "/tokenizer.json");
  const text::EngramMap map = text::build_engram_map(tokenizer);
  if (map.num_compressed_ids != config.engram_compressed_vocab_size)
    throw Error(ErrorCode::kDataCorrupt,
                flags.model_dir + ": tokenizer.json gives " +
                    std::to_string(map.num_compressed_ids) +
                    " compressed ids, engram_compressed_vocab_size of config.json is " +
                    std::to_string(config.engram_compressed_vocab_size));
  const std::string path =
      flags.out_path.empty() ? flags.model_dir + "/engram_token_map.i32" : flags.out_path;
  write_file(path, little_endian(map.compressed_ids));
  std::printf("%s: %zu token ids, %d compressed ids\n", path.c_str(), map.compressed_ids.size(),
              map.num_compressed_ids);
  return 0;
}

}  // namespace

void add_engram_map(CLI::App& app, Commands& commands) {
  const auto flags = std::make_shared<EngramMapFlags>();
  CLI::App* command = app.add_subcommand(
      "engram-map", "Writes the token map of a model's n-gram memory, from its tokenizer.json");
  command->add_option("--model", flags->model_dir, "The model's directory")->required();
  command->add_option("--out", flags->out_path,
                      "File to write (default: engram_token_map.i32 in that directory)");
  command->callback(
      [&commands, flags] { commands.selected = [flags] { return write_engram_map(*flags); }; });
}

}  // namespace onecard::cli
