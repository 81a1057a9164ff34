#include "cli/commands.h"

#include <CLI/CLI.hpp>

namespace onecard::cli {

void add_commands(CLI::App& app, Commands& commands) {
  add_serve(app, commands);  // in the order in which --help lists them
  add_chat(app, commands);
  add_gates(app, commands);
  add_config(app, commands);
  add_inspect(app, commands);
  add_quantize(app, commands);
  add_compare(app, commands);
  add_precision(app, commands);
  add_logits(app, commands);
  add_render(app, commands);
  add_parse(app, commands);
  add_engram_map(app, commands);
  add_bench(app, commands);
}

}  // namespace onecard::cli
