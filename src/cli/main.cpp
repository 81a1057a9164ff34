// onecard: one program, a subcommand a job. A subcommand lives in its own file and registers itself
// in commands.h.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "io/lost_pages.h"

namespace {

// 2: the call was wrong (as argument parsers do); 1: it was right and failed.
int exit_code(onecard::ErrorCode code) {
  switch (code) {
    case onecard::ErrorCode::kInvalidArgument:
    case onecard::ErrorCode::kNotFound:
    case onecard::ErrorCode::kUnsupported:
      return 2;
    default:
      return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  onecard::io::guard_lost_pages();
  CLI::App app{"onecard serves DeepSeek-V4.1-Flash from one GPU card, host memory and a drive.",
               "onecard"};
  app.set_version_flag("--version", ONECARD_VERSION);
  app.require_subcommand(1);
  app.formatter(onecard::cli::help_formatter());
  app.footer(R"(Start with
  onecard serve                     the demo model at http://127.0.0.1:8000/v1, for any client
  onecard chat                      or talk to it here
  onecard COMMAND --help            every flag of a command, its variable, and examples

Exit code: 0 it worked, 1 it was tried and failed, 2 the call was wrong.)");
  onecard::cli::Commands commands;
  if (argc > 2) commands.arguments.assign(argv + 2, argv + argc);
  onecard::cli::add_commands(app, commands);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // 0: --help and --version
  }
  try {
    return commands.selected();
  } catch (const onecard::Error& error) {
    std::fprintf(stderr, "onecard: %s\n", error.what());
    return exit_code(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "onecard: %s\n", error.what());
    return 1;
  }
}
