// What /metrics shows: the engine's counters, and histograms that HTTP threads fill. Prometheus
// text format, names and buckets as vLLM's, so that its dashboards work.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace onecard::server {

class Histogram {
 public:
  explicit Histogram(std::vector<double> upper_bounds);
  void observe(double value);
  /// Appends the samples; `labels` is the inside of the braces.
  void render(std::string& out, const std::string& name, const std::string& labels) const;

 private:
  std::vector<double> upper_bounds_;
  std::vector<int64_t> counts_;  // one more than bounds: the last is for what is above them all
  double sum_ = 0;
};

/// Of a sequence that has ended by itself.
struct SequenceTimes {
  double end_to_end_seconds = 0;
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  int64_t prompt_tokens = 0;
  int64_t generation_tokens = 0;
};

class Metrics {
 public:
  Metrics(std::string model_name, int64_t context_length);

  // Safe from any thread.
  void observe_request(int64_t n, int64_t max_tokens);
  void observe_first_token(double seconds);
  void observe_token_gaps(std::span<const double> seconds);
  void observe_finished(const SequenceTimes& times);

  std::string render(const engine::Counters& counters) const;

 private:
  const std::string labels_;
  const int64_t context_length_;
  mutable std::mutex mutex_;  // guards the histograms
  Histogram end_to_end_;
  Histogram first_token_;
  Histogram token_gap_;
  Histogram per_token_;
  Histogram queue_;
  Histogram prefill_;
  Histogram decode_;
  Histogram inference_;
  Histogram prompt_tokens_;
  Histogram generation_tokens_;
  Histogram params_n_;
  Histogram params_max_tokens_;
};

}  // namespace onecard::server
