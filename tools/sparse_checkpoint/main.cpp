// make_sparse_checkpoint DIR: DeepSeek-V4.1-Flash in full size, as DIR/official and DIR/exl3,
// without weights and without disk.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "sparse_checkpoint/sparse_checkpoint.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Writes DeepSeek-V4.1-Flash in full size as sparse files: no weights, no disk used."};
  std::string directory;
  app.add_option("directory", directory, "Where official/ and exl3/ are made")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    const auto config = onecard::model::deepseek_v41_flash_config();
    onecard::sparse::write_sparse(directory + "/official", onecard::sparse::official_shards(config),
                                  config);
    onecard::sparse::write_sparse(directory + "/exl3", onecard::sparse::exl3_shards(config),
                                  config);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_sparse_checkpoint: %s\n", error.what());
    return 1;
  }
  return 0;
}
