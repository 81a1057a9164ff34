// Everything that can be set about a server, filled from flags and the environment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace onecard::cli {

struct ServerConfig {
  std::string model_dir;                 // empty: the bundled demo model
  std::vector<std::string> model_names;  // empty: the directory's name

  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free one
  int http_threads = 2;
  int64_t max_body_mib = 64;
  std::vector<std::string> api_keys;
  bool cors = true;
  double header_timeout_seconds = 20;
  double body_timeout_seconds = 120;
  double request_timeout_seconds = 0;  // 0: none
  double drain_timeout_seconds = 30;

  int max_num_seqs = 4;
  int max_queued_requests = 64;
  int64_t max_model_len = 0;  // 0: what the model knows
  int64_t prefill_chunk_tokens = 512;
  int64_t prefix_cache_mib = 1024;
  int64_t host_limit_mib = 0;  // 0: what the machine and its control groups leave
  std::string prefill = "exact";
  std::string device = "auto";
  int64_t vram_limit_mib = 0;  // 0: what is free on the device
  std::string isa = "auto";
  std::string expert_precision = "auto";
  int threads = 0;  // 0: all but two of the processors, at least one

  bool deterministic = false;

  bool thinking = true;
  int effort = 75;
  std::vector<int> effort_names = {50, 75, 100};
  bool lenient_history = false;
  bool client_markup = false;
  std::string log_level = "info";
};

/// Declares the flags, each with its environment variable.
void add_model_flags(CLI::App& command, ServerConfig& config);
void add_server_flags(CLI::App& command, ServerConfig& config);

/// The same with what was left to onecard filled in: the bundled model, its name, the context it
/// knows, the processors and their kernels. Reads the model's configuration, not its weights;
/// throws kNotFound, kInvalidArgument or kUnsupported naming the flag.
ServerConfig with_choices(ServerConfig config);

/// The directory of the model bundled with this program; throws kNotFound when there is none.
std::string bundled_model_dir();

}  // namespace onecard::cli
