#include "client/gates.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "client/sse_parser.h"

namespace onecard::client {
namespace {

using json::Value;

const Value* member(const Value* object, std::string_view key) {
  const Value* value = object == nullptr ? nullptr : object->find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}
std::string text_of(const Value* object, std::string_view key) {
  const Value* value = member(object, key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}
int64_t int_of(const Value* object, std::string_view key) {
  const Value* value = member(object, key);
  return value != nullptr && value->is_number() ? value->as_int64().value_or(0) : 0;
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return text;
}
std::string shortened(const std::string& text) {
  return text.size() <= 120 ? text : text.substr(0, 117) + "...";
}

Value user(const std::string& text) {
  return Value::object({{"role", Value::string("user")}, {"content", Value::string(text)}});
}

struct Reply {
  Value body;
  const Value* choice() const {
    const Value* choices = member(&body, "choices");
    return choices == nullptr || !choices->is_array() || choices->items().empty()
               ? nullptr
               : &choices->items()[0];
  }
  const Value* message() const { return member(choice(), "message"); }
  std::string content() const { return text_of(message(), "content"); }
  std::string reasoning() const {
    const std::string text = text_of(message(), "reasoning_content");
    return text.empty() ? text_of(message(), "reasoning") : text;
  }
};

// The texts and numbers of one run of the conversations.
struct Wording {
  std::string suffix;  // of the gates' names
  std::string chat = "Name three primary colors, comma separated.";
  int a = 17, b = 23;
  std::string product = "What is 17 * 23? Reply with only the number.";
  std::string weather = "What's the weather in Paris right now? Use the tool.";
  std::string city = "Paris";
  int temperature = 17;
  std::string code = "58213";
};

Wording paraphrased(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto number = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  constexpr std::array<const char*, 5> kCities = {"Rome", "Oslo", "Lima", "Cairo", "Tokyo"};
  Wording wording;
  wording.suffix = " (other words)";
  wording.chat = "Tell me three primary colors and separate them with commas.";
  wording.a = number(11, 29);
  wording.b = number(11, 29);
  wording.product = "Compute " + std::to_string(wording.a) + " * " + std::to_string(wording.b) +
                    ". Reply with only the number.";
  wording.city = kCities[size_t(number(0, 4))];
  wording.weather = "How is the weather in " + wording.city + " at the moment? Use the tool.";
  wording.temperature = number(21, 38);
  wording.code = std::to_string(number(10000, 99999));
  return wording;
}

class Gates {
 public:
  Gates(Http& http, const GateOptions& options,
        const std::function<void(const GateResult&)>& on_result)
      : http_(http), options_(options), on_result_(on_result) {}

  std::vector<GateResult> run() {
    if (!load()) return std::move(results_);
    if (options_.original) {
      const Wording wording;
      conversations(wording);
      context(wording, 1.0);
      speed();
    }
    if (options_.paraphrased) {
      const Wording wording = paraphrased(options_.seed);
      conversations(wording);
      for (const double place : {0.1, 0.5, 0.9}) context(wording, place);
    }
    return std::move(results_);
  }

 private:
  void add(GateResult result) {
    results_.push_back(std::move(result));
    on_result_(results_.back());
  }

  // A gate that the server refuses or breaks has failed, and the next is tried.
  template <typename Gate>
  void attempt(const std::string& name, const char* shows, const char* not_shown, Gate&& gate) {
    GateResult result{name, false, "", shows, not_shown};
    try {
      gate(result);
    } catch (const Error& error) {
      result.passed = false;
      result.found = error.what();
    }
    add(std::move(result));
  }

  Reply ask(Value messages, const Value* tools = nullptr) {
    Value body = Value::object({{"model", Value::string(model_)},
                                {"messages", std::move(messages)},
                                {"temperature", Value::real(0.6)}});
    if (tools != nullptr) body.set("tools", *tools);
    const Http::Answer answer = http_.post("/v1/chat/completions", json::dump(body));
    if (answer.status != 200)
      throw Error(ErrorCode::kInvalidArgument,
                  "status " + std::to_string(answer.status) + ": " + shortened(answer.body));
    return {json::parse(answer.body)};
  }

  bool load() {
    attempt(
        "load", "the server answers and names its model", "that it can compute anything",
        [&](GateResult& result) {
          const Http::Answer answer = http_.get("/v1/models");
          const Value body = json::parse(answer.body);
          const Value* data = member(&body, "data");
          if (answer.status != 200 || data == nullptr || !data->is_array() || data->items().empty())
            throw Error(ErrorCode::kNotFound,
                        "status " + std::to_string(answer.status) + ", and no model in the answer");
          model_ = text_of(&data->items()[0], "id");
          context_length_ = int_of(&data->items()[0], "max_model_len");
          result.passed = !model_.empty();
          result.found = model_ + ", context " + std::to_string(context_length_);
        });
    return results_.back().passed;
  }

  void conversations(const Wording& wording) {
    attempt("chat" + wording.suffix, "a short answer ends by itself", "that it is right",
            [&](GateResult& result) {
              const Reply reply = ask(Value::array({user(wording.chat)}));
              result.found = shortened(reply.content());
              result.passed =
                  !reply.content().empty() && text_of(reply.choice(), "finish_reason") == "stop";
            });
    attempt("reasoning" + wording.suffix,
            "reasoning is apart from the answer, one product is right", "arithmetic in general",
            [&](GateResult& result) {
              const Reply reply = ask(Value::array({user(wording.product)}));
              result.found = shortened(reply.content());
              result.passed = !reply.reasoning().empty() &&
                              contains(reply.content(), std::to_string(wording.a * wording.b)) &&
                              !contains(reply.content(), "<think>");
            });
    attempt("tools" + wording.suffix, "a call is made, and its result is used",
            "several calls, or tools that were not asked for",
            [&](GateResult& result) { tools(wording, result); });
  }

  void tools(const Wording& wording, GateResult& result) {
    const Value tools = json::parse(
        R"([{"type":"function","function":{"name":"get_weather","description":"Get the current )"
        R"(weather of a city","parameters":{"type":"object","properties":{"city":{"type":"string"}},)"
        R"("required":["city"]}}}])");
    Value messages = Value::array({user(wording.weather)});
    const Reply first = ask(messages, &tools);
    const Value* calls = member(first.message(), "tool_calls");
    if (calls == nullptr || !calls->is_array() || calls->items().empty()) {
      result.found = "no call, but: " + shortened(first.content());
      return;
    }
    const Value& call = calls->items()[0];
    const Value* function = member(&call, "function");
    const Value arguments = json::parse(text_of(function, "arguments"));
    result.found = text_of(function, "name") + " " + text_of(function, "arguments");
    if (text_of(function, "name") != "get_weather" ||
        !contains(lower(text_of(&arguments, "city")), lower(wording.city)))
      return;
    messages.items().push_back(*first.message());
    const Value tool_result = Value::object({{"city", Value::string(wording.city)},
                                             {"temp_c", Value::integer(wording.temperature)},
                                             {"sky", Value::string("overcast")}});
    messages.items().push_back(
        Value::object({{"role", Value::string("tool")},
                       {"tool_call_id", Value::string(text_of(&call, "id"))},
                       {"content", Value::string(json::dump(tool_result))}}));
    const Reply second = ask(messages, &tools);
    result.found += " -> " + shortened(second.content());
    result.passed = contains(second.content(), std::to_string(wording.temperature));
  }

  // A code at `place` (0 to 1) of a prompt that fills 85% of the context.
  void context(const Wording& wording, double place) {
    const bool at_end = place >= 1;
    const std::string name =
        at_end ? "context" : "context, code at " + std::to_string(int(place * 100)) + "%";
    attempt(name + wording.suffix,
            at_end ? "a prompt of 85% of the context is read"
                   : "a code far back in a long prompt is found",
            at_end ? "recall from afar: the code stands in the last words" : "recall of many facts",
            [&](GateResult& result) {
              if (context_length_ <= 0)
                throw Error(ErrorCode::kNotFound, "the server does not say its context length");
              const auto num_lines = int64_t(double(context_length_) * 0.85 / tokens_per_line());
              std::string text;
              for (int64_t i = 0; i < num_lines; ++i) {
                if (!at_end && i == int64_t(place * double(num_lines)))
                  text += "The access code for the vault is " + wording.code + ". ";
                text += line(i) + " ";
              }
              if (at_end)
                text += "The access code for the vault is " + wording.code +
                        ". Anything else is routine.";
              text += "\n\nWhat is the access code for the vault? Reply with only the code.";
              const Reply reply = ask(Value::array({user(text)}));
              const int64_t prompt_tokens = int_of(member(&reply.body, "usage"), "prompt_tokens");
              result.found =
                  shortened(reply.content()) + " (" + std::to_string(prompt_tokens) + " tokens)";
              result.passed = contains(reply.content(), wording.code) &&
                              double(prompt_tokens) >= 0.6 * double(context_length_);
            });
  }

  static std::string line(int64_t i) {
    return "Line " + std::to_string(i) + ": the archive notes that shipment " +
           std::to_string(7 * i % 997) + " left dock " + std::to_string(i % 13) + " on schedule.";
  }

  // 24 with the release's tokenizer; another one is asked.
  double tokens_per_line() {
    std::string text;
    for (int64_t i = 200; i < 250; ++i) text += line(i) + " ";
    const std::optional<int64_t> count = count_tokens(text);
    return count ? std::max(24.0, double(*count) / 50) : 24.0;
  }

  std::optional<int64_t> count_tokens(const std::string& text) {
    const std::string body = json::dump(Value::object({{"prompt", Value::string(text)}}));
    const Http::Answer answer = http_.post("/tokenize", body);
    if (answer.status != 200) return std::nullopt;
    const Value value = json::parse(answer.body);
    return int_of(&value, "count");
  }

  void speed() {
    attempt(
        "speed", "a single answer streams at the wanted rate", "rates at other lengths or loads",
        [&](GateResult& result) {
          using Clock = std::chrono::steady_clock;
          const Value body = Value::object(
              {{"model", Value::string(model_)},
               {"messages",
                Value::array({user("Write a detailed 600-word story about a lighthouse keeper.")})},
               {"temperature", Value::real(0.8)},
               {"stream", Value::boolean(true)}});
          std::optional<Clock::time_point> first;
          Clock::time_point last;
          std::string text;
          SseParser parser([&](const SseEvent& event) {
            if (event.data == "[DONE]") return;
            const Value chunk = json::parse(event.data);
            const Reply reply{chunk};
            const Value* delta = member(reply.choice(), "delta");
            std::string piece = text_of(delta, "reasoning_content");
            piece += text_of(delta, "content");
            if (piece.empty()) return;
            const Clock::time_point now = Clock::now();
            if (!first) first = now;
            if (std::chrono::duration<double>(now - *first).count() > options_.speed_seconds)
              return;
            text += piece;
            last = now;
          });
          const Http::Answer answer = http_.post_stream(
              "/v1/chat/completions", json::dump(body),
              [&](std::string_view bytes) {
                parser.feed(bytes);
                return true;
              },
              [] { return true; });
          if (answer.status != 200 || !first)
            throw Error(ErrorCode::kIo,
                        "status " + std::to_string(answer.status) + ", and nothing came");
          const std::optional<int64_t> counted = count_tokens(text);
          const double tokens = counted ? double(*counted) : double(text.size()) / 4;
          const double seconds = std::chrono::duration<double>(last - *first).count();
          const double rate = seconds > 0 ? tokens / seconds : 0;
          result.found =
              std::to_string(rate) + " tok/s" + (counted ? "" : " (estimated from characters)");
          result.passed = rate >= options_.min_tokens_per_second;
        });
  }

  Http& http_;
  const GateOptions& options_;
  const std::function<void(const GateResult&)>& on_result_;
  std::vector<GateResult> results_;
  std::string model_;
  int64_t context_length_ = 0;
};

}  // namespace

std::vector<GateResult> run_gates(Http& http, const GateOptions& options,
                                  const std::function<void(const GateResult&)>& on_result) {
  return Gates(http, options, on_result).run();
}

}  // namespace onecard::client
