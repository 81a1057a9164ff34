// onecard serve: the API server, until SIGTERM or SIGINT.
#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <ctime>
#include <memory>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/local_server.h"
#include "cli/server_config.h"

namespace onecard::cli {
namespace {

log::Level log_level(const std::string& name) {
  if (name == "debug") return log::Level::kDebug;
  if (name == "warn") return log::Level::kWarn;
  if (name == "error") return log::Level::kError;
  return log::Level::kInfo;
}

// True when one of `signals` came within a fifth of a second.
bool wait_for_signal(const sigset_t& signals) {
  const timespec interval{.tv_sec = 0, .tv_nsec = 200'000'000};
  return sigtimedwait(&signals, nullptr, &interval) > 0;
}

int serve(const ServerConfig& config) {
  log::set_level(log_level(config.log_level));
  // Blocked before any thread is started, so that the main thread alone takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  LocalServer server(config);
  while (!wait_for_signal(signals)) {
    if (server.failure().empty()) continue;
    log::error("exiting", {{"reason", "the engine has failed"}, {"error", server.failure()}});
    return 1;
  }
  log::info("draining", {{"timeout_seconds", std::to_string(config.drain_timeout_seconds)}});
  server.drain();
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration<double>(config.drain_timeout_seconds);
  while (!server.idle() && std::chrono::steady_clock::now() < deadline)
    if (wait_for_signal(signals)) break;  // asked twice: at once
  log::info("stopped");
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, Commands& commands) {
  const auto config = std::make_shared<ServerConfig>();
  CLI::App* command = app.add_subcommand("serve", "Serves a model behind an OpenAI-compatible API");
  command->footer(R"(Examples:
  onecard serve                           the demo model at http://127.0.0.1:8000/v1
  onecard serve --model DIR --host 0.0.0.0 --api-key SECRET
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"messages": [{"role": "user", "content": "Hello"}], "stream": true}'

The line with event=ready on stderr says that it answers. SIGTERM lets running answers end first;
a second one does not. Every flag can also be set by the environment variable named beside it.)");
  add_model_flags(*command, *config);
  add_server_flags(*command, *config);
  command->callback(
      [&commands, config] { commands.selected = [config] { return serve(*config); }; });
}

}  // namespace onecard::cli
