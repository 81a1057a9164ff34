// make_tiny_model: writes a small checkpoint with deterministic weights.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <map>
#include <string>

#include "base/json.h"
#include "io/file.h"
#include "make_tiny_model/tiny_model.h"

int main(int argc, char** argv) {
  using onecard::tiny::Storage;
  CLI::App app{"Writes a small checkpoint with deterministic weights, in official names."};
  std::string directory;
  std::string preset = "t-nq";
  std::string members_file;
  std::vector<std::string> assignments;
  onecard::tiny::TinyOptions options;
  app.add_option("directory", directory, "Where the checkpoint is made")->required();
  app.add_option("--preset", preset, "The configuration to begin with")
      ->check(CLI::IsMember(onecard::tiny::preset_names()))
      ->capture_default_str();
  app.add_option("--members", members_file,
                 "A JSON file: an object of members of text_config to replace");
  app.add_option("--set", assignments, "NAME=JSON: a member of text_config to replace; repeatable");
  const std::map<std::string, Storage> storages{{"f32", Storage::kF32},
                                                {"bf16", Storage::kBf16},
                                                {"fp8", Storage::kFp8},
                                                {"exl3", Storage::kExl3}};
  app.add_option("--storage", options.storage, "How matrices are stored")
      ->transform(CLI::CheckedTransformer(storages));
  app.add_option("--seed", options.seed, "Other weights of the same kind")->capture_default_str();
  app.add_option("--expert-bits", options.expert_bits, "EXL3 bits of the routed experts")
      ->check(CLI::Range(1, 8));
  app.add_option("--dense-bits", options.dense_bits, "EXL3 bits of the other matrices")
      ->check(CLI::Range(1, 8));
  app.add_option("--shard-bytes", options.shard_bytes, "Largest shard");
  CLI11_PARSE(app, argc, argv);
  try {
    std::vector<std::pair<std::string, std::string>> members;
    if (!members_file.empty()) {
      const auto file = onecard::json::parse(onecard::io::read_text_file(members_file, 1 << 20));
      for (const auto& [name, value] : file.members())
        members.emplace_back(name, onecard::json::dump(value));
    }
    for (const std::string& assignment : assignments) {
      const size_t equals = assignment.find('=');
      if (equals == std::string::npos)
        throw CLI::ValidationError("--set", "expected NAME=JSON, found " + assignment);
      members.emplace_back(assignment.substr(0, equals), assignment.substr(equals + 1));
    }
    onecard::tiny::write_checkpoint(
        directory, onecard::tiny::with_members(onecard::tiny::preset_config(preset), members),
        options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_tiny_model: %s\n", error.what());
    return 2;
  }
  return 0;
}
