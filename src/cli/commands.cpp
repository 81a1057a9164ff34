#include "cli/commands.h"

#include <CLI/CLI.hpp>

namespace onecard::cli {

void add_commands(CLI::App&, Commands&) {}

}  // namespace onecard::cli
