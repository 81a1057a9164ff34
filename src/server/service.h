// What every endpoint needs: the engine, the tokenizer, the names under which the model is served,
// the defaults, the metrics. Shared by all HTTP threads; everything here is const or thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/generation.h"
#include "server/metrics.h"
#include "server/openai/sampling_fields.h"
#include "text/chat_encoder.h"
#include "text/chat_json.h"
#include "text/grammar/token_trie.h"
#include "text/tokenizer.h"

namespace onecard::server {

struct ServiceOptions {
  std::vector<std::string> model_names;  // at least one; the first is the default
  std::vector<std::string> api_keys;     // none: open
  text::ChatJsonOptions chat;
  text::ClientMarkup client_markup = text::ClientMarkup::kText;
  std::optional<double> request_timeout_seconds;
  std::optional<uint64_t> default_seed;  // of requests without one; none: a random one each
  int retry_after_seconds = 2;
};

class Service {
 public:
  Service(engine::Engine& engine, const text::Tokenizer& tokenizer, ServiceOptions options);

  engine::Engine& engine() { return engine_; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  const std::shared_ptr<const text::TokenTrie>& trie() const { return trie_; }
  const ServiceOptions& options() const { return options_; }
  Metrics& metrics() { return metrics_; }
  int64_t created() const { return created_; }  // seconds since 1970
  int64_t now() const;                          // the same
  int64_t context_length() const { return engine_.context_length(); }

  /// The name to answer with. Throws a 404 when `name` is given and not served.
  const std::string& model_name(const std::string& name) const;

  /// Throws a 400 with the code context_length_exceeded when no token of an answer fits.
  void check_length(int64_t num_prompt_tokens, const std::string& param,
                    std::optional<int64_t> max_tokens) const;

  /// Hands the sequences of one request to the engine. Throws 429 or 503 when the engine does not
  /// take them all; none runs then.
  std::vector<engine::SequenceHandle> submit(std::vector<engine::SequenceRequest> requests);

  /// The part of a sequence that the shared fields say; choice `choice_idx` of n has a seed of its
  /// own.
  engine::SequenceRequest sequence_request(const openai::GenerationFields& fields,
                                           std::vector<int32_t> prompt, int choice_idx) const;

 private:
  engine::Engine& engine_;
  const text::Tokenizer& tokenizer_;
  const std::shared_ptr<const text::TokenTrie> trie_;  // for constrained answers
  const ServiceOptions options_;
  Metrics metrics_;
  const int64_t created_;
};

}  // namespace onecard::server
