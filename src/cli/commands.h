// The subcommands of onecard. Each add_* declares its flags on `app` and, when chosen, sets
// commands.selected to what runs it.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace onecard::cli {

struct Commands {
  std::vector<std::string> arguments;  // of the subcommand, as they were typed
  std::function<int()> selected;       // returns the exit code; an Error is reported by main
};

void add_commands(CLI::App& app, Commands& commands);

void add_engram_map(CLI::App& app, Commands& commands);
void add_inspect(CLI::App& app, Commands& commands);
void add_compare(CLI::App& app, Commands& commands);
void add_config(CLI::App& app, Commands& commands);
void add_precision(CLI::App& app, Commands& commands);
void add_logits(CLI::App& app, Commands& commands);
void add_serve(CLI::App& app, Commands& commands);
void add_chat(CLI::App& app, Commands& commands);
void add_gates(CLI::App& app, Commands& commands);
void add_parse(CLI::App& app, Commands& commands);
void add_quantize(CLI::App& app, Commands& commands);
void add_render(CLI::App& app, Commands& commands);
void add_bench(CLI::App& app, Commands& commands);

}  // namespace onecard::cli
