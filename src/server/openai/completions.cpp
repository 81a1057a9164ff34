#include "server/openai/completions.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "server/answer_exchange.h"
#include "server/openai/chat_answer.h"
#include "server/openai/error_body.h"
#include "server/openai/token_json.h"
#include "server/output_constraint.h"
#include "text/chat_tokens.h"
#include "text/detokenizer.h"

namespace onecard::server::openai {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;
constexpr size_t kMaxPrompts = 64;
constexpr std::string_view kFimBegin = "<\uff5cfim\u2581begin\uff5c>";
constexpr std::string_view kFimHole = "<\uff5cfim\u2581hole\uff5c>";
constexpr std::string_view kFimEnd = "<\uff5cfim\u2581end\uff5c>";

struct CompletionRequest {
  std::string model;
  GenerationFields generation;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> echoes;  // the prompts as text; empty without echo
  bool prompt_only = false;         // with echo: nothing is answered
  std::optional<int> num_logprobs;

  /// Log probabilities of the prompt's tokens stand in front of the answer's.
  bool echoes_logprobs() const { return !echoes.empty() && num_logprobs.has_value(); }
};

class PromptReader {
 public:
  PromptReader(const Fields& fields, const text::Tokenizer& tokenizer)
      : fields_(fields),
        tokenizer_(tokenizer),
        suffix_(fields.string("suffix").value_or("")),
        add_bos_(fields.boolean("add_special_tokens").value_or(false)) {
    if (suffix_.empty()) return;
    for (const std::string_view token : {kFimBegin, kFimHole, kFimEnd})
      if (!tokenizer_.added_token(token))
        throw Error(ErrorCode::kUnsupported,
                    "suffix: the tokenizer has no tokens for filling in the middle");
  }

  // A string, ids, or an array of either.
  std::vector<std::vector<int32_t>> read() const {
    const json::Value* value = fields_.find("prompt");
    if (value == nullptr) fields_.refuse("prompt", "is missing");
    if (value->is_string()) return {encode(value->as_string())};
    if (!value->is_array()) refuse();
    const std::vector<json::Value>& items = value->items();
    if (items.empty() || items.size() > kMaxPrompts)
      if (items.empty() || !items[0].is_number())
        fields_.refuse("prompt", "has to hold 1 to " + std::to_string(kMaxPrompts) + " prompts");
    if (items[0].is_number()) return {ids(*value)};
    std::vector<std::vector<int32_t>> prompts;
    for (const json::Value& item : items) {
      if (item.is_string())
        prompts.push_back(encode(item.as_string()));
      else if (item.is_array())
        prompts.push_back(ids(item));
      else
        refuse();
    }
    return prompts;
  }

 private:
  [[noreturn]] void refuse() const {
    fields_.refuse("prompt", "has to be a string, an array of token ids, or an array of either");
  }

  std::vector<int32_t> encode(const std::string& text) const {
    std::string whole = text;
    if (!suffix_.empty())
      whole =
          std::string(kFimBegin) + text + std::string(kFimHole) + suffix_ + std::string(kFimEnd);
    if (add_bos_ && !whole.starts_with(text::kBos)) whole.insert(0, text::kBos);
    return tokenizer_.encode(whole);
  }

  std::vector<int32_t> ids(const json::Value& list) const {
    std::vector<int32_t> out;
    for (const json::Value& item : list.items()) {
      const std::optional<int64_t> id = item.is_number() ? item.as_int64() : std::nullopt;
      if (!id || *id < 0 || *id >= tokenizer_.vocab_size())
        fields_.refuse("prompt", "its numbers have to be token ids below " +
                                     std::to_string(tokenizer_.vocab_size()));
      out.push_back(int32_t(*id));
    }
    return out;
  }

  const Fields& fields_;
  const text::Tokenizer& tokenizer_;
  const std::string suffix_;
  const bool add_bos_;
};

std::string decoded(std::span<const int32_t> ids, const text::Tokenizer& tokenizer) {
  text::Detokenizer detokenizer(tokenizer);
  std::string out;
  for (const int32_t id : ids) detokenizer.push(id, out);
  detokenizer.finish(out);
  return out;
}

CompletionRequest parse_completion_request(const std::string& text,
                                           const text::Tokenizer& tokenizer) {
  const json::Value body = json::parse(text);
  const Fields fields(body);
  CompletionRequest request;
  request.model = fields.string("model").value_or("");
  const bool echo = fields.boolean("echo").value_or(false);
  request.generation = read_generation_fields(fields, echo ? 0 : 1);
  if (!request.generation.max_tokens) request.generation.max_tokens = kDefaultMaxTokens;
  if (*request.generation.max_tokens == 0) {  // the engine answers at least one, which is not told
    request.prompt_only = true;
    request.generation.max_tokens = 1;
  }
  if (const auto logprobs = fields.integer("logprobs", 0, kMaxTopLogprobs))
    request.num_logprobs = int(*logprobs);
  request.prompts = PromptReader(fields, tokenizer).read();
  for (const auto& prompt : request.prompts)
    if (prompt.empty()) fields.refuse("prompt", "must not be empty");
  if (echo)
    for (const auto& prompt : request.prompts) request.echoes.push_back(decoded(prompt, tokenizer));
  return request;
}

class CompletionFormat final : public AnswerFormat {
 public:
  CompletionFormat(const Service& service, CompletionRequest request)
      : tokenizer_(service.tokenizer()),
        request_(std::move(request)),
        states_(request_.prompts.size() * size_t(request_.generation.n)) {
    head_ =
        json::Value::object({{"id", json::Value::string(random_id("cmpl-"))},
                             {"object", json::Value::string("text_completion")},
                             {"created", json::Value::integer(service.now())},
                             {"model", json::Value::string(service.model_name(request_.model))}});
  }

  void begin(std::string& out) override {
    if (request_.echoes.empty() || request_.num_logprobs) return;
    for (size_t i = 0; i < states_.size(); ++i)
      append_event(out, json::dump(chunk(choice_json(i, nullptr, echo_of(i), json::Value()))));
  }

  void add(size_t choice_idx, Choice& choice, const text::MessageEvent& event,
           std::string& out) override {
    // Log probabilities of the prompt are there only now.
    if (request_.echoes_logprobs() && !std::exchange(states_[choice_idx].echo_told, true))
      append_event(out, json::dump(chunk(echo_json(choice_idx, choice))));
    json::Value json;
    if (request_.prompt_only && !std::holds_alternative<text::MessageEnd>(event)) return;
    if (const auto* content = std::get_if<text::ContentDelta>(&event))
      json = choice_json(choice_idx, &choice, content->text, json::Value());
    else if (const auto* end = std::get_if<text::MessageEnd>(&event))
      json = last_choice_json(choice_idx, choice, "", *end);
    else
      return;
    json::Value whole = chunk(std::move(json));
    if (request_.generation.continuous_usage_stats)
      whole.set("usage", usage_json(told_usage(choice)));
    append_event(out, json::dump(whole));
  }

  void end(const std::vector<Choice>& choices, std::string& out) override {
    if (request_.generation.include_usage) {
      json::Value last = head_;
      last.set("choices", json::Value::array());
      last.set("usage", usage_json(usage_of(choices)));
      append_event(out, json::dump(last));
    }
    append_event(out, "[DONE]");
  }

  void fail(const ApiError& error, std::string& out) override {
    append_event(out, error_body(error));
    append_event(out, "[DONE]");
  }

  std::string whole(std::vector<Choice>& choices) override {
    json::Value list = json::Value::array();
    for (size_t i = 0; i < choices.size(); ++i) {
      const text::ParsedMessage message = text::fold(choices[i].events);
      const Choice& first = choices[i - i % size_t(request_.generation.n)];  // of the same prompt
      prepend_prompt(first, i);
      list.items().push_back(last_choice_json(
          i, choices[i], echo_of(i) + (request_.prompt_only ? "" : message.content),
          {message.finish_reason, message.stop_string}));
      if (request_.generation.prompt_logprobs)
        list.items().back().set(
            "prompt_logprobs",
            prompt_logprobs_json(first.generation.prompt_tokens(),
                                 *request_.generation.prompt_logprobs, tokenizer_));
    }
    json::Value body = head_;
    body.set("choices", std::move(list));
    body.set("usage", usage_json(usage_of(choices)));
    return json::dump(body);
  }

  http::Response error(const ApiError& error) override { return error_response(error); }

 private:
  // The parallel arrays of log probabilities that completions have always had.
  struct TokenArrays {
    json::Value texts = json::Value::array();
    json::Value values = json::Value::array();
    json::Value tops = json::Value::array();
    json::Value offsets = json::Value::array();
  };
  struct State {
    TokenArrays arrays;      // to be told next
    size_t text_offset = 0;  // of the next token, in code points
    bool echo_told = false;
  };

  size_t prompt_of(size_t choice_idx) const { return choice_idx / size_t(request_.generation.n); }
  std::string echo_of(size_t choice_idx) const {
    return request_.echoes.empty() ? "" : request_.echoes[prompt_of(choice_idx)];
  }

  json::Value chunk(json::Value choice) const {
    json::Value value = head_;
    value.set("choices", json::Value::array({std::move(choice)}));
    return value;
  }

  json::Value last_choice_json(size_t choice_idx, Choice& choice, const std::string& text,
                               const text::MessageEnd& end) {
    const text::FinishReason reason =
        request_.prompt_only ? text::FinishReason::kLength : end.reason;
    json::Value json = choice_json(choice_idx, &choice, text,
                                   json::Value::string(text::finish_reason_name(reason)));
    const std::optional<int32_t> stop_id =
        told_stop_id(choice.generation.stop_token_id(), request_.generation.stop_token_ids);
    json.set("stop_reason", !end.stop_string.empty() ? json::Value::string(end.stop_string)
                            : stop_id                ? json::Value::integer(*stop_id)
                                                     : json::Value());
    return json;
  }

  json::Value choice_json(size_t choice_idx, Choice* choice, const std::string& text,
                          json::Value finish_reason) {
    json::Value json = json::Value::object({{"index", json::Value::integer(int64_t(choice_idx))},
                                            {"text", json::Value::string(text)},
                                            {"logprobs", json::Value()},
                                            {"finish_reason", std::move(finish_reason)}});
    if (choice == nullptr) return json;
    if (request_.prompt_only) choice->tokens.clear();
    if (request_.num_logprobs) {
      for (const engine::TokenEvent& token : choice->tokens) add_token(token, states_[choice_idx]);
      json.set("logprobs", take_arrays(states_[choice_idx]));
    }
    if (request_.generation.return_token_ids) {
      json.set("token_ids", ids_json(choice->tokens));
      json.set("prompt_token_ids", ids_json(request_.prompts[prompt_of(choice_idx)]));
    }
    choice->tokens.clear();  // each is told once
    return json;
  }

  // The prompt of a stream whose tokens have log probabilities.
  json::Value echo_json(size_t choice_idx, const Choice& choice) {
    prepend_prompt(choice, choice_idx);
    json::Value json = choice_json(choice_idx, nullptr, echo_of(choice_idx), json::Value());
    json.set("logprobs", take_arrays(states_[choice_idx]));
    return json;
  }

  // `first`: a choice of the same prompt that was asked for its log probabilities.
  void prepend_prompt(const Choice& first, size_t choice_idx) {
    if (!request_.echoes_logprobs()) return;
    State& state = states_[choice_idx];
    const int32_t begin = request_.prompts[prompt_of(choice_idx)][0];
    add_token(begin, json::Value(), json::Value(), state);
    for (const engine::TokenEvent& token : first.generation.prompt_tokens())
      add_token(token, state);
  }

  void add_token(const engine::TokenEvent& token, State& state) const {
    json::Value top = json::Value::object();
    for (size_t i = 0; i < std::min(token.top.size(), size_t(*request_.num_logprobs)); ++i)
      top.set(shown(token.top[i].token), logprob_json(token.top[i].logprob));
    add_token(token.token, logprob_json(token.logprob), std::move(top), state);
  }

  void add_token(int32_t token, json::Value logprob, json::Value top, State& state) const {
    state.arrays.texts.items().push_back(json::Value::string(shown(token)));
    state.arrays.values.items().push_back(std::move(logprob));
    state.arrays.tops.items().push_back(std::move(top));
    state.arrays.offsets.items().push_back(json::Value::integer(int64_t(state.text_offset)));
    for (const char c : known_bytes(token, tokenizer_))
      state.text_offset += (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // begins a code point
  }

  std::string shown(int32_t token) const {
    return shown_token(token, tokenizer_, request_.generation.tokens_as_token_ids);
  }

  static json::Value take_arrays(State& state) {
    TokenArrays arrays = std::exchange(state.arrays, TokenArrays());
    return json::Value::object({{"tokens", std::move(arrays.texts)},
                                {"token_logprobs", std::move(arrays.values)},
                                {"top_logprobs", std::move(arrays.tops)},
                                {"text_offset", std::move(arrays.offsets)}});
  }

  Usage told_usage(const Choice& choice) const {
    Usage usage = choice.generation.usage();
    if (request_.prompt_only) usage.completion_tokens = 0;
    return usage;
  }

  // Every prompt counts once.
  Usage usage_of(const std::vector<Choice>& choices) const {
    Usage total;
    for (size_t i = 0; i < choices.size(); ++i) {
      const Usage usage = told_usage(choices[i]);
      total.completion_tokens += usage.completion_tokens;
      if (i % size_t(request_.generation.n) != 0) continue;
      total.prompt_tokens += usage.prompt_tokens;
      total.cached_tokens += usage.cached_tokens;
    }
    return total;
  }

  const text::Tokenizer& tokenizer_;
  const CompletionRequest request_;
  json::Value head_;
  std::vector<State> states_;
};

}  // namespace

std::unique_ptr<http::Exchange> start_completion(Service& service, const http::Request& request,
                                                 const http::Wake& wake) {
  CompletionRequest completion = parse_completion_request(request.body, service.tokenizer());
  const GenerationFields& fields = completion.generation;
  service.model_name(completion.model);
  for (const auto& prompt : completion.prompts)
    service.check_length(int64_t(prompt.size()), "prompt", fields.max_tokens);
  service.metrics().observe_request(fields.n, *fields.max_tokens);

  ConstraintOptions constraint;
  constraint.bad_words = fields.bad_words;
  GenerationOptions options;
  options.stop = fields.stop;
  options.include_stop_string = fields.include_stop_string;
  options.skip_special_tokens = fields.skip_special_tokens;
  options.keep_tokens = completion.num_logprobs || fields.return_token_ids;
  std::vector<engine::SequenceRequest> sequences;
  std::vector<int64_t> num_prompt_tokens;
  for (const auto& prompt : completion.prompts)
    for (int i = 0; i < fields.n; ++i) {
      engine::SequenceRequest sequence = service.sequence_request(fields, prompt, i);
      sequence.request_id = request.id;
      sequence.sampling.num_logprobs = completion.num_logprobs;
      // In a whole answer the first choice of a prompt speaks for all; a stream cannot wait for it.
      if (completion.echoes_logprobs() && (i == 0 || fields.stream))
        sequence.prompt_logprobs =
            std::max(*completion.num_logprobs, fields.prompt_logprobs.value_or(0));
      else if (i == 0)
        sequence.prompt_logprobs = fields.prompt_logprobs;
      sequence.constraint = make_constraint(constraint, service.tokenizer());
      sequence.wake = wake;
      sequences.push_back(std::move(sequence));
      num_prompt_tokens.push_back(int64_t(prompt.size()));
    }
  std::vector<Choice> choices;
  for (engine::SequenceHandle& handle : service.submit(std::move(sequences))) {
    const int64_t num_tokens = num_prompt_tokens[choices.size()];
    choices.push_back({Generation(service.tokenizer(), service.metrics(), options), {}, {}, false});
    choices.back().generation.start(std::move(handle), num_tokens);
  }
  const bool stream = fields.stream;
  auto format = std::make_unique<CompletionFormat>(service, std::move(completion));
  return std::make_unique<AnswerExchange>(std::move(choices), std::move(format), stream,
                                          request.id);
}

}  // namespace onecard::server::openai
