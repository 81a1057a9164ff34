#include "cli/local_server.h"

#include <chrono>
#include <iomanip>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cli/flag_values.h"
#include "cli/memory_check.h"
#include "device/cpu/topology.h"
#include "engine/engine.h"
#include "engine/transformer_runner.h"
#include "io/checkpoint.h"
#include "model/config.h"
#include "model/model.h"
#include "model/precision_record.h"
#include "server/app.h"
#include "server/http/server.h"
#include "server/service.h"
#include "text/chat_tokens.h"
#include "text/tokenizer.h"

namespace onecard::cli {
namespace {

engine::PrefillMode prefill_mode(const std::string& name) {
  if (name == "full") return engine::PrefillMode::kFull;
  if (name == "bounded") return engine::PrefillMode::kBounded;
  return engine::PrefillMode::kExact;
}

std::vector<int32_t> stop_ids(const text::Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const std::string_view token : text::kStopTokens)
    if (const auto id = tokenizer.added_token(token)) ids.push_back(*id);
  return ids;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(int64_t(seconds * 1000));
}

server::http::ServerOptions http_options(const ServerConfig& config) {
  server::http::ServerOptions options;
  options.host = config.host;
  options.port = config.port;
  options.num_threads = config.http_threads;
  options.max_body_bytes = size_t(config.max_body_mib) << 20;
  options.header_timeout = milliseconds(config.header_timeout_seconds);
  options.body_timeout = milliseconds(config.body_timeout_seconds);
  if (config.cors) options.response_headers = {{"Access-Control-Allow-Origin", "*"}};
  return options;
}

server::ServiceOptions service_options(const ServerConfig& config) {
  server::ServiceOptions options;
  options.model_names = config.model_names;
  options.api_keys = config.api_keys;
  options.chat.thinking.thinking = config.thinking;
  options.chat.thinking.effort = config.effort;
  options.chat.thinking.names = {.low = config.effort_names.at(0),
                                 .high = config.effort_names.at(1),
                                 .max = config.effort_names.at(2)};
  options.chat.lenient_history = config.lenient_history;
  options.client_markup =
      config.client_markup ? text::ClientMarkup::kTokens : text::ClientMarkup::kText;
  if (config.deterministic) options.default_seed = 0;
  if (config.request_timeout_seconds > 0)
    options.request_timeout_seconds = config.request_timeout_seconds;
  return options;
}

std::string rounded(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

// On the CPU: the threads that compute experts fastest, of those that may be used. Logs what was
// measured.
int choose_threads(model::Model& model, cpu::Isa isa, int asked_threads, int default_threads) {
  const std::vector<int> counts = asked_threads > 0 ? std::vector<int>{asked_threads}
                                                    : cpu::thread_counts(cpu::allowed_cores());
  const auto begin = std::chrono::steady_clock::now();
  const auto timing = model.experts().choose_fastest(isa, counts);
  if (!timing) return default_threads;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::string timed;
  for (const int count : timing->timed_threads)
    timed += (timed.empty() ? "" : ",") + std::to_string(count);
  using Source = experts::ExpertTiming::Source;
  log::info("expert_timing",
            {{"kernel", timing->kernel},
             {"precision", timing->precision},
             {"prefetch_bytes", std::to_string(timing->prefetch_bytes)},
             {"threads", std::to_string(timing->num_threads)},
             {"threads_timed", timed},
             {"us_per_expert", rounded(timing->us_per_expert, 1)},
             {"GB_per_s", rounded(timing->bytes_per_second * 1e-9, 2)},
             {"read_GB_per_s", rounded(timing->read_bytes_per_second * 1e-9, 2)},
             {"weights_from", timing->source == Source::kMemory  ? "memory"
                              : timing->source == Source::kCache ? "cache"
                                                                 : "memory and cache"},
             {"experts_mib", rounded(double(timing->store_bytes) / (1 << 20), 1)},
             {"cache_mib", std::to_string(timing->cache_bytes >> 20)},
             {"seconds", rounded(seconds.count(), 3)}});
  return timing->num_threads;
}

}  // namespace

// In order of construction; taken down in reverse, but for the HTTP threads, which stop first.
struct LocalServer::Parts {
  explicit Parts(const ServerConfig& config) : http(http_options(config)) {}
  ~Parts() { http.stop(); }

  server::http::Server http;
  std::optional<text::Tokenizer> tokenizer;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<server::Service> service;
  std::unique_ptr<server::App> app;
  std::string url;
};

LocalServer::LocalServer(const ServerConfig& asked) {
  const auto begin = std::chrono::steady_clock::now();
  const ServerConfig config = with_choices(asked);
  const std::string& model_dir = config.model_dir;
  parts_ = std::make_unique<Parts>(config);
  const std::string host = config.host == "0.0.0.0" || config.host == "localhost" ? "127.0.0.1"
                           : config.host.find(':') != std::string::npos ? "[" + config.host + "]"
                                                                        : config.host;
  parts_->url = "http://" + host + ":" + std::to_string(parts_->http.port());
  log::info("listening", {{"url", parts_->url}, {"model", model_dir}});

  parts_->tokenizer = text::Tokenizer::load(model_dir + "/tokenizer.json");
  const model::ModelConfig model_config = model::load_model_config(model_dir);
  if (parts_->tokenizer->vocab_size() > model_config.vocab_size)
    throw Error(ErrorCode::kDataCorrupt, model_dir + "/tokenizer.json: has ids up to " +
                                             std::to_string(parts_->tokenizer->vocab_size() - 1) +
                                             ", the model " +
                                             std::to_string(model_config.vocab_size) + " in all");
  engine::TransformerOptions runner_options;
  runner_options.num_slots = config.max_num_seqs;
  runner_options.context_length = config.max_model_len;
  runner_options.prefill_chunk_tokens = config.prefill_chunk_tokens;
  runner_options.prefill_mode = prefill_mode(config.prefill);
  runner_options.device = open_device(config.device);
  runner_options.isa = cpu::isa_from_name(config.isa).value();
  runner_options.num_threads = config.threads;
  runner_options.prefix_cache_bytes = config.prefix_cache_mib << 20;

  io::Checkpoint checkpoint = io::Checkpoint::open(model_dir);
  check_memory(model_config,
               {.weight_bytes = weight_bytes(checkpoint),
                .prefix_cache_bytes = runner_options.prefix_cache_bytes,
                .num_slots = runner_options.num_slots,
                .context_length = runner_options.context_length,
                .prefill_rows = engine::prefill_workspace_rows(model_config, runner_options),
                .tail_rows = engine::prefill_tail_rows(model_config, runner_options),
                .logits_rows = runner_options.num_slots + engine::kLogitsChunkTokens},
               {.device = runner_options.device.get(),
                .host_limit_mib = config.host_limit_mib,
                .vram_limit_mib = config.vram_limit_mib});

  engine::EngineOptions engine_options;
  engine_options.max_num_seqs = config.max_num_seqs;
  engine_options.max_queued_seqs = config.max_queued_requests;
  engine_options.prefill_chunk_tokens = config.prefill_chunk_tokens;
  engine_options.stop_token_ids = stop_ids(*parts_->tokenizer);
  model::Arithmetic arithmetic;
  if (runner_options.device == nullptr)
    arithmetic = model::choose_arithmetic(model::read_precision_record(checkpoint),
                                          parse_expert_precision(config.expert_precision));
  runner_options.dense_int16 = arithmetic.dense_int16;
  std::unique_ptr<model::Model> model = model::Model::load(
      std::move(checkpoint), model_config,
      {.backend = backend_of(runner_options.device), .expert_precision = arithmetic.experts});
  if (runner_options.device == nullptr)
    runner_options.num_threads =
        choose_threads(*model, runner_options.isa, asked.threads, config.threads);
  parts_->engine = std::make_unique<engine::Engine>(
      engine::make_transformer_runner(std::move(model), runner_options), engine_options);
  parts_->service = std::make_unique<server::Service>(*parts_->engine, *parts_->tokenizer,
                                                      service_options(config));
  parts_->app = std::make_unique<server::App>(*parts_->service);
  parts_->http.run(*parts_->app);

  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  log::info("ready",
            {{"url", parts_->url},
             {"model", parts_->service->options().model_names.front()},
             {"max_model_len", std::to_string(runner_options.context_length)},
             {"max_num_seqs", std::to_string(config.max_num_seqs)},
             {"device", runner_options.device != nullptr ? runner_options.device->name() : "cpu"},
             {"isa", cpu::isa_name(runner_options.isa)},
             {"dense_precision", arithmetic.dense_int16 ? "int16" : "exact"},
             {"expert_precision", arithmetic.experts ? ops::exl3_precision_name(*arithmetic.experts)
                                                     : config.expert_precision},
             {"threads", std::to_string(runner_options.num_threads)},
             {"seconds", std::to_string(seconds)}});
}

LocalServer::~LocalServer() = default;

std::string LocalServer::url() const { return parts_->url; }

void LocalServer::drain() {
  parts_->engine->drain();
  parts_->http.drain();
}

bool LocalServer::idle() const {
  return parts_->engine->idle() && parts_->http.num_connections() == 0;
}

std::string LocalServer::failure() const { return parts_->engine->failure(); }

}  // namespace onecard::cli
