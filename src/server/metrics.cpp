#include "server/metrics.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace onecard::server {
namespace {

std::string number(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

std::vector<double> request_buckets() {
  return {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
          30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
}
std::vector<double> first_token_buckets() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
          1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
}
std::vector<double> token_gap_buckets() {
  return {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
}
// 1 2 5 10 20 50 ... up to the context.
std::vector<double> token_count_buckets(int64_t context_length) {
  std::vector<double> bounds;
  for (double decade = 1; decade <= double(context_length); decade *= 10)
    for (const double step : {1.0, 2.0, 5.0})
      if (step * decade <= double(context_length)) bounds.push_back(step * decade);
  return bounds;
}

std::string label_value(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

void head(std::string& out, const std::string& name, const char* type, const char* help) {
  out += "# HELP " + name + ' ' + help + "\n# TYPE " + name + ' ' + type + '\n';
}

// `counts` has one more than there are bounds: the last is for what is above them all.
template <typename Bound>
void render_histogram(std::string& out, const std::string& name, const std::string& labels,
                      std::span<const Bound> upper_bounds, std::span<const int64_t> counts,
                      double sum) {
  int64_t total = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    total += counts[i];
    const std::string bound =
        i < upper_bounds.size() ? number(double(upper_bounds[i])) : std::string("+Inf");
    out += name + "_bucket{" + labels + ",le=\"" + bound + "\"} " + std::to_string(total) + '\n';
  }
  out += name + "_sum{" + labels + "} " + number(sum) + '\n';
  out += name + "_count{" + labels + "} " + std::to_string(total) + '\n';
}

}  // namespace

Histogram::Histogram(std::vector<double> upper_bounds)
    : upper_bounds_(std::move(upper_bounds)), counts_(upper_bounds_.size() + 1) {}

void Histogram::observe(double value) {
  const auto bound = std::lower_bound(upper_bounds_.begin(), upper_bounds_.end(), value);
  ++counts_[size_t(bound - upper_bounds_.begin())];
  sum_ += value;
}

void Histogram::render(std::string& out, const std::string& name, const std::string& labels) const {
  render_histogram<double>(out, name, labels, upper_bounds_, counts_, sum_);
}

Metrics::Metrics(std::string model_name, int64_t context_length)
    : labels_("engine=\"0\",model_name=\"" + label_value(model_name) + '"'),
      context_length_(context_length),
      end_to_end_(request_buckets()),
      first_token_(first_token_buckets()),
      token_gap_(token_gap_buckets()),
      per_token_(token_gap_buckets()),
      queue_(request_buckets()),
      prefill_(request_buckets()),
      decode_(request_buckets()),
      inference_(request_buckets()),
      prompt_tokens_(token_count_buckets(context_length)),
      generation_tokens_(token_count_buckets(context_length)),
      params_n_({1, 2, 5, 10, 20}),
      params_max_tokens_(token_count_buckets(context_length)) {}

void Metrics::observe_request(int64_t n, int64_t max_tokens) {
  const std::lock_guard lock(mutex_);
  params_n_.observe(double(n));
  params_max_tokens_.observe(double(max_tokens));
}

void Metrics::observe_first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_.observe(seconds);
}

void Metrics::observe_token_gaps(std::span<const double> seconds) {
  if (seconds.empty()) return;
  const std::lock_guard lock(mutex_);
  for (const double gap : seconds) token_gap_.observe(gap);
}

void Metrics::observe_finished(const SequenceTimes& times) {
  const std::lock_guard lock(mutex_);
  end_to_end_.observe(times.end_to_end_seconds);
  queue_.observe(times.queue_seconds);
  prefill_.observe(times.prefill_seconds);
  decode_.observe(times.decode_seconds);
  inference_.observe(times.prefill_seconds + times.decode_seconds);
  prompt_tokens_.observe(double(times.prompt_tokens));
  generation_tokens_.observe(double(times.generation_tokens));
  if (times.generation_tokens > 1)
    per_token_.observe(times.decode_seconds / double(times.generation_tokens - 1));
}

std::string Metrics::render(const engine::Counters& counters) const {
  std::string out;
  const auto value = [&](const std::string& name, const char* type, const char* help,
                         double number_value) {
    head(out, name, type, help);
    out += name + '{' + labels_ + "} " + number(number_value) + '\n';
  };
  value("vllm:num_requests_running", "gauge", "Sequences that are being computed.",
        double(counters.num_running));
  value("vllm:num_requests_waiting", "gauge", "Sequences that wait for a slot.",
        double(counters.num_waiting));
  value("vllm:kv_cache_usage_perc", "gauge", "Share of the KV rows in use, 0 to 1.",
        counters.kv_tokens_capacity == 0
            ? 0
            : double(counters.kv_tokens_used) / double(counters.kv_tokens_capacity));
  value("vllm:prompt_tokens_total", "counter", "Prompt tokens read.",
        double(counters.prompt_tokens));
  value("vllm:prompt_tokens_cached_total", "counter", "Prompt tokens taken from the prefix cache.",
        double(counters.prompt_tokens_cached));
  value("vllm:generation_tokens_total", "counter", "Tokens sampled.",
        double(counters.generation_tokens));
  value("vllm:prefix_cache_queries_total", "counter", "Tokens asked of the prefix cache.",
        double(counters.prefix_cache_queries));
  value("vllm:prefix_cache_hits_total", "counter", "Tokens found in the prefix cache.",
        double(counters.prefix_cache_hits));
  value("vllm:num_preemptions_total", "counter", "Sequences that lost their slot to others.", 0);
  value("onecard:computed_tokens_total", "counter",
        "Tokens that went through the model, of prompts and answers.",
        double(counters.tokens_computed));
  value("onecard:decode_steps_total", "counter", "Decode steps, each of all sequences decoding.",
        double(counters.num_steps));
  value("onecard:prefill_chunks_total", "counter", "Chunks of prompts read.",
        double(counters.num_prefill_chunks));

  const std::string finished = "vllm:request_success_total";
  head(out, finished, "counter", "Sequences that have ended, by reason.");
  const std::pair<const char*, int64_t> reasons[] = {{"stop", counters.finished_stop},
                                                     {"length", counters.finished_length},
                                                     {"abort", counters.finished_cancelled},
                                                     {"error", counters.finished_error}};
  for (const auto& [reason, count] : reasons)
    out += finished + '{' + labels_ + ",finished_reason=\"" + reason + "\"} " +
           std::to_string(count) + '\n';
  // No tokens are drafted: the totals are there for dashboards, the positions have no samples.
  for (const auto& [name, help] : {std::pair{"drafts", "Drafts made."},
                                   {"draft_tokens", "Tokens drafted."},
                                   {"accepted_tokens", "Drafted tokens that were accepted."}})
    value("vllm:spec_decode_num_" + std::string(name) + "_total", "counter", help, 0);
  head(out, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
       "Drafted tokens that were accepted, by their place in the draft.");

  const std::string iteration = "vllm:iteration_tokens_total";
  head(out, iteration, "histogram", "Tokens of a prefill chunk or of a decode step.");
  render_histogram<int64_t>(out, iteration, labels_, engine::kIterationTokenBounds,
                            counters.iterations_by_tokens, double(counters.tokens_computed));

  const std::string config = "vllm:cache_config_info";
  head(out, config, "gauge", "How much context fits.");
  out += config + '{' + labels_ + ",max_model_len=\"" + std::to_string(context_length_) +
         "\",kv_tokens=\"" + std::to_string(counters.kv_tokens_capacity) + "\"} 1\n";

  const std::lock_guard lock(mutex_);
  const auto histogram = [&](const std::string& name, const char* help, const Histogram& values) {
    head(out, name, "histogram", help);
    values.render(out, name, labels_);
  };
  histogram("vllm:e2e_request_latency_seconds", "From arrival to the last token.", end_to_end_);
  histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", first_token_);
  histogram("vllm:inter_token_latency_seconds", "From one token to the next.", token_gap_);
  histogram("vllm:request_time_per_output_token_seconds", "Decode time over tokens, by request.",
            per_token_);
  histogram("vllm:request_queue_time_seconds", "Waiting for a slot.", queue_);
  histogram("vllm:request_prefill_time_seconds", "Reading the prompt.", prefill_);
  histogram("vllm:request_decode_time_seconds", "From the first token to the last.", decode_);
  histogram("vllm:request_inference_time_seconds", "Prefill and decode.", inference_);
  histogram("vllm:request_prompt_tokens", "Prompt tokens, by request.", prompt_tokens_);
  histogram("vllm:request_generation_tokens", "Sampled tokens, by request.", generation_tokens_);
  histogram("vllm:request_max_num_generation_tokens",
            "Largest number of sampled tokens of a request.", generation_tokens_);
  histogram("vllm:request_params_n", "Choices asked for.", params_n_);
  histogram("vllm:request_params_max_tokens", "Token limits asked for.", params_max_tokens_);
  return out;
}

}  // namespace onecard::server
