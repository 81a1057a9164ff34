#include "cli/server_config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "device/cpu/isa.h"
#include "device/cpu/topology.h"
#include "device/cuda_device.h"
#include "model/config.h"

namespace onecard::cli {

void add_model_flags(CLI::App& command, ServerConfig& config) {
  const auto group = command.add_option_group("Model");
  group
      ->add_option("model,--model", config.model_dir,
                   "Directory of the checkpoint (default: the demo model that comes with onecard)")
      ->envname("ONECARD_MODEL");
  group
      ->add_option("--max-model-len", config.max_model_len,
                   "Tokens of prompt and answer together (default: what the model knows)")
      ->envname("ONECARD_MAX_MODEL_LEN")
      ->check(CLI::NonNegativeNumber);
  group
      ->add_option("--max-num-seqs", config.max_num_seqs,
                   "Answers that are generated at the same time")
      ->envname("ONECARD_MAX_NUM_SEQS")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  group
      ->add_option("--max-num-batched-tokens,--prefill-chunk-tokens", config.prefill_chunk_tokens,
                   "Prompt tokens that are read at once; others answer in between")
      ->envname("ONECARD_PREFILL_CHUNK_TOKENS")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  group
      ->add_option("--prefix-cache-mib", config.prefix_cache_mib,
                   "Host memory for prompts that may come again, in MiB; 0 for none")
      ->envname("ONECARD_PREFIX_CACHE_MIB")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  group
      ->add_option("--host-limit-mib", config.host_limit_mib,
                   "Host memory that may be used, in MiB; 0 for what the machine and its control "
                   "groups leave")
      ->envname("ONECARD_HOST_LIMIT_MIB")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  group
      ->add_option("--prefill", config.prefill,
                   "exact: the decoder reads what the answer depends on; full: every token; "
                   "bounded: the last window, an approximation")
      ->envname("ONECARD_PREFILL")
      ->check(CLI::IsMember({"exact", "full", "bounded"}))
      ->capture_default_str();
  group
      ->add_flag("--deterministic", config.deterministic,
                 "Requests without a seed get the same one: an answer depends on its request alone")
      ->envname("ONECARD_DETERMINISTIC");
  group
      ->add_option("--device", config.device,
                   "Where the model runs; auto: on a CUDA device where there is one")
      ->envname("ONECARD_DEVICE")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  group
      ->add_option("--vram-limit-mib,--vram-limit", config.vram_limit_mib,
                   "Device memory that may be used, in MiB; 0 for what is free")
      ->envname("ONECARD_VRAM_LIMIT_MIB")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  group->add_option("--isa", config.isa, "Widest CPU kernels to use; auto: what this processor has")
      ->envname("ONECARD_ISA")
      ->check(CLI::IsMember({"auto", "plain", "avx2", "avx512-vnni", "avx512-vbmi"}))
      ->capture_default_str();
  group
      ->add_option(
          "--expert-precision", config.expert_precision,
          "Arithmetic of EXL3 weights on the CPU; auto: the fastest that onecard precision has "
          "found harmless for this model, else int16 for experts above 1 MiB and exact for the "
          "rest; exact: all; int8: refused without such a record")
      ->envname("ONECARD_EXPERT_PRECISION")
      ->check(CLI::IsMember({"auto", "exact", "int16", "int8"}))
      ->capture_default_str();
  group
      ->add_option(
          "--threads", config.threads,
          "Threads that compute (default: all processors, but two of more than four; fewer "
          "where a timing at start finds that faster)")
      ->envname("ONECARD_THREADS")
      ->check(CLI::Range(0, 1024));
}

void add_server_flags(CLI::App& command, ServerConfig& config) {
  const auto http = command.add_option_group("HTTP");
  http->add_option("--host", config.host, "Address to listen on; 0.0.0.0 for all")
      ->envname("ONECARD_HOST")
      ->capture_default_str();
  http->add_option("--port", config.port, "Port to listen on; 0 for a free one, which is printed")
      ->envname("ONECARD_PORT")
      ->capture_default_str();
  http->add_option("--api-key", config.api_keys,
                   "Key that clients have to send as a bearer token; may be given several times "
                   "(default: none: "
                   "open to all)")
      ->envname("ONECARD_API_KEY");
  http->add_option("--served-model-name", config.model_names,
                   "Name of the model in the API; may be given several times (default: the "
                   "directory's name)")
      ->envname("ONECARD_SERVED_MODEL_NAME");
  http->add_option("--max-queued-requests", config.max_queued_requests,
                   "Requests that may wait for a free place; more are answered 429")
      ->envname("ONECARD_MAX_QUEUED_REQUESTS")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  http->add_option("--request-timeout", config.request_timeout_seconds,
                   "Seconds after which an answer is cut off; 0 for never")
      ->envname("ONECARD_REQUEST_TIMEOUT")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  http->add_option("--header-timeout", config.header_timeout_seconds,
                   "Seconds that the header of a request may take to arrive")
      ->envname("ONECARD_HEADER_TIMEOUT")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  http->add_option("--body-timeout", config.body_timeout_seconds,
                   "Seconds that the body of a request may take to arrive")
      ->envname("ONECARD_BODY_TIMEOUT")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  http->add_option("--drain-timeout", config.drain_timeout_seconds,
                   "Seconds that running answers get to end after SIGTERM")
      ->envname("ONECARD_DRAIN_TIMEOUT")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  http->add_option("--http-threads", config.http_threads, "Threads that serve connections")
      ->envname("ONECARD_HTTP_THREADS")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  http->add_option("--max-body-mib", config.max_body_mib, "Largest body of a request, in MiB")
      ->envname("ONECARD_MAX_BODY_MIB")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  http->add_flag("--cors,!--no-cors", config.cors, "Let web pages of any origin ask")
      ->envname("ONECARD_CORS")
      ->default_str("on");

  const auto chat = command.add_option_group("Chat");
  chat->add_flag("--thinking,!--no-thinking", config.thinking,
                 "Reason before answering when a request does not say")
      ->envname("ONECARD_THINKING")
      ->default_str("on");
  chat->add_option("--effort", config.effort, "Reasoning effort when a request does not say")
      ->envname("ONECARD_EFFORT")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  chat->add_option("--effort-names", config.effort_names,
                   "What the efforts low, high and max mean, as three numbers")
      ->envname("ONECARD_EFFORT_NAMES")
      ->delimiter(',')
      ->expected(3)
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  chat->add_flag("--lenient-history", config.lenient_history,
                 "Accept tool calls without results and results without calls")
      ->envname("ONECARD_LENIENT_HISTORY");
  chat->add_flag("--client-markup", config.client_markup,
                 "Let markup typed by clients become the tokens it names, as other servers do")
      ->envname("ONECARD_CLIENT_MARKUP");
  command.add_option("--log-level", config.log_level, "What is logged on stderr")
      ->envname("ONECARD_LOG_LEVEL")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
      ->capture_default_str();
}

ServerConfig with_choices(ServerConfig config) {
  if (config.model_dir.empty()) config.model_dir = bundled_model_dir();
  while (config.model_dir.size() > 1 && config.model_dir.ends_with('/'))
    config.model_dir.pop_back();
  if (config.model_names.empty())
    config.model_names = {std::filesystem::path(config.model_dir).filename().string()};

  const int64_t known = model::load_model_config(config.model_dir).max_position_embeddings;
  if (config.max_model_len > known)
    throw Error(ErrorCode::kInvalidArgument,
                "--max-model-len: " + std::to_string(config.max_model_len) +
                    " is more than the model's " + std::to_string(known));
  if (config.max_model_len == 0) config.max_model_len = known;

  if (config.threads == 0) config.threads = cpu::thread_counts(cpu::allowed_cores()).front();

  if (config.device == "auto") config.device = num_cuda_devices() > 0 ? "cuda" : "cpu";
  const cpu::Isa found = cpu::detect_isa();
  if (config.isa == "auto") config.isa = cpu::isa_name(found);
  const std::optional<cpu::Isa> wanted = cpu::isa_from_name(config.isa);
  require(wanted.has_value(), ErrorCode::kInvalidArgument, "--isa: no such name");
  if (*wanted > found)
    throw Error(
        ErrorCode::kUnsupported,
        "--isa: this processor has " + std::string(cpu::isa_name(found)) + ", not " + config.isa);
  return config;
}

std::string bundled_model_dir() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  // Beside the sources (build/PRESET/onecard) or installed (bin/onecard).
  const fs::path bin = program.parent_path();
  for (const fs::path& candidate :
       {bin / "../../models/demo", bin / "../share/onecard/models/demo", bin / "models/demo"})
    if (fs::exists(candidate / "config.json", ignored)) return fs::canonical(candidate).string();
  throw Error(
      ErrorCode::kNotFound,
      "no --model was given, and the demo model is not beside this program (" + bin.string() + ")");
}

}  // namespace onecard::cli
