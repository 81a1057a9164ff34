#include "client/gates.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/json.h"

namespace onecard::client {
namespace {

using json::Value;
using Clock = std::chrono::steady_clock;

constexpr double kFilled = 0.85;           // of the context that the long prompts take
constexpr double kLeastFilled = 0.6;       // of it that the server has to have counted
constexpr double kReleaseLineTokens = 24;  // of one line of the archive, by the release's tokenizer

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return text;
}
// At most 100 bytes on one line, cut where a character begins.
std::string shortened(std::string text) {
  constexpr size_t kLimit = 100;
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() <= kLimit) return text;
  size_t end = kLimit - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}
std::string in_quotes(const std::string& text) { return "\"" + shortened(text) + "\""; }
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The texts and numbers of one set of gates.
struct Wording {
  std::string chat = "Name three primary colors, comma separated.";
  int num_parts = 0;  // that commas have to separate; 0: any answer will do
  int a = 17, b = 23;
  std::string product = "What is 17 * 23? Reply with only the number.";
  std::string weather = "What's the weather in Paris right now? Use the tool.";
  std::string city = "Paris";
  int temperature = 17;
  std::string story = "Write a detailed 600-word story about a lighthouse keeper.";
};

Wording paraphrased(std::mt19937_64& random) {
  // Not std::uniform_int_distribution, whose numbers differ from one library to the next.
  const auto below = [&](uint64_t count) { return random() % count; };
  constexpr std::array<const char*, 6> kCities = {"Rome",  "Oslo",  "Lima",
                                                  "Cairo", "Tokyo", "Berlin"};
  constexpr std::array<const char*, 4> kHeroes = {"baker", "sailor", "gardener", "teacher"};
  Wording wording;
  wording.chat = "Give me three primary colors in one line with commas.";
  wording.num_parts = 3;
  wording.a = int(11 + below(19));
  wording.b = int(11 + below(19));
  wording.product = "Calculate " + std::to_string(wording.a) + " x " + std::to_string(wording.b) +
                    ". Just the number.";
  wording.city = kCities[below(kCities.size())];
  wording.weather = "How is the weather in " + wording.city + "? Please use the tool.";
  wording.temperature = int(18 + below(20));
  wording.story =
      std::string("Tell me a story about a ") + kHeroes[below(kHeroes.size())] + " in 600 words.";
  return wording;
}

std::string archive_line(int64_t i) {
  return "Line " + std::to_string(i) + ": the archive notes that shipment " +
         std::to_string(7 * i % 997) + " left dock " + std::to_string(i % 13) + " on schedule.";
}

std::string archive_lines(int64_t begin, int64_t end) {
  std::string text;
  for (int64_t i = begin; i < end; ++i) {
    if (i > begin) text += ' ';
    text += archive_line(i);
  }
  return text;
}

class Gates {
 public:
  Gates(ChatClient& client, const GateOptions& options,
        const std::function<void(const GateReport&, const GateResult&)>& on_result)
      : client_(client), options_(options), on_result_(on_result) {
    declare();
  }

  GateReport run() {
    for (size_t i = 0; i < gates_.size(); ++i) {
      report_.results.push_back(gates_[i].about);
      const bool reached = i == 0 || report_.results[0].outcome == GateOutcome::kPassed;
      if (reached) run(gates_[i], report_.results.back());
      on_result_(report_, report_.results.back());
    }
    return std::move(report_);
  }

 private:
  // Says whether one run passed, and what it found.
  using Body = std::function<bool(GateResult&)>;
  struct Gate {
    GateResult about;
    Body body;
  };

  void add(const char* name, bool original, const std::string& asks, const std::string& rule,
           const char* shows, const char* not_shown, Body body) {
    const std::vector<std::string>& only = options_.only;
    const bool wanted = only.empty() || std::find(only.begin(), only.end(), name) != only.end();
    if (!wanted && !gates_.empty()) return;  // the first names the model, which the others need
    GateResult about;
    about.name = name;
    about.original = original;
    about.asks = shortened(asks);
    about.rule = rule;
    about.shows = shows;
    about.not_shown = not_shown;
    gates_.push_back({std::move(about), std::move(body)});
  }

  void declare() {
    add("load", true, "GET /v1/models", "a model is named",
        "the server answers and names its model", "that it can compute anything",
        [this](GateResult& result) { return load(result); });
    if (options_.original) declare(Wording{}, true);
    if (options_.paraphrased) {
      std::mt19937_64 random(options_.seed);
      declare(paraphrased(random), false);
      for (const auto& [name, place] :
           {std::pair{"context 10%", 0.1}, {"context 50%", 0.5}, {"context 90%", 0.9}}) {
        const std::string code = std::to_string(10000 + random() % 90000);
        add(name, false, "the same archive, the code at " + std::string(name + 8) + " of it",
            code + " in the answer, 60% of the context counted",
            "one fact is found from so far back, among lines that look alike",
            "recall of many facts, or understanding of what lies between",
            [this, place = place, code](GateResult& result) {
              return context(place, code, "Which access code opens the vault?", result);
            });
      }
    }
    if (!options_.only.empty() && gates_.size() == 1 &&
        options_.only != std::vector<std::string>{"load"})
      throw Error(ErrorCode::kInvalidArgument,
                  "gate: there is none called \"" + options_.only.front() + "\"");
  }

  void declare(const Wording& wording, bool original) {
    const std::string product = std::to_string(wording.a * wording.b);
    const std::string temperature = std::to_string(wording.temperature);
    add("chat", original, wording.chat,
        wording.num_parts == 0 ? "some text, and it ends by itself"
                               : "three parts between commas, and it ends by itself",
        wording.num_parts == 0 ? "a short answer ends by itself"
                               : "a short answer keeps to the form asked for",
        "that it is right", [this, wording](GateResult& result) { return chat(wording, result); });
    add("reasoning", original, wording.product,
        product + " in the answer, and reasoning apart from it",
        "reasoning comes apart from the answer, and one product is right",
        "arithmetic in general, or that the reasoning led to it",
        [this, wording](GateResult& result) { return reasoning(wording, result); });
    add("tools", original, wording.weather,
        "get_weather is called with " + wording.city + ", then " + temperature + " in the answer",
        "one tool is called with the right argument, and its result is used",
        "several calls, a choice among tools, or a tool nobody mentioned",
        [this, wording](GateResult& result) { return tools(wording, result); });
    if (original)
      add("context", true, "an archive of 85% of the context, the code in its last words",
          "58213 in the answer, 60% of the context counted",
          "so long a prompt is read, and its last words are answered",
          "recall from afar: the code stands in the last words", [this](GateResult& result) {
            return context(1, "58213", "What is the access code for the vault?", result);
          });
    add("speed", original, wording.story, "at least " + rate_text(options_.min_tokens_per_second),
        "one answer streams at the wanted rate, counted by the server's tokenizer",
        "the rate behind a long prompt or beside other requests, or that the story is good",
        [this, wording](GateResult& result) { return speed(wording, result); });
  }

  void run(const Gate& gate, GateResult& result) {
    std::string failed;
    const Clock::time_point begin = Clock::now();
    for (run_ = 0; run_ < options_.repeat; ++run_) {
      bool passed = false;
      try {
        passed = gate.body(result);
      } catch (const Error& error) {  // the server refuses or breaks: failed, and the next is tried
        result.found = error.what();
      }
      ++result.num_runs;
      result.num_passed += passed ? 1 : 0;
      if (!passed && failed.empty()) failed = result.found;
      if (&gate == &gates_[0]) break;  // nothing is sampled
    }
    result.seconds = seconds_since(begin);
    result.outcome =
        result.num_passed == result.num_runs ? GateOutcome::kPassed : GateOutcome::kFailed;
    if (result.outcome == GateOutcome::kFailed) result.found = failed;
  }

  std::vector<json::Member> fields(double temperature) const {
    return {{"model", Value::string(report_.model)},
            {"temperature", Value::real(temperature)},
            {"seed", Value::integer(int64_t((options_.seed + uint64_t(run_)) & INT64_MAX))}};
  }
  ChatAnswer ask(const std::string& question) {
    return client_.ask(Value::array({text_message("user", question)}), fields(0.6));
  }

  bool load(GateResult& result) {
    const Clock::time_point begin = Clock::now();
    std::vector<ServedModel> models;
    for (;;) {
      try {
        models = client_.models();
        break;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kIo || seconds_since(begin) >= options_.wait_seconds) throw;
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
    }
    if (models.empty() || models[0].id.empty()) {
      result.found = "no model in the answer";
      return false;
    }
    report_.model = models[0].id;
    report_.context_tokens =
        options_.context_tokens > 0 ? options_.context_tokens : models[0].context_length;
    result.found = report_.model + ", context " + std::to_string(models[0].context_length);
    return true;
  }

  bool chat(const Wording& wording, GateResult& result) {
    const ChatAnswer answer = ask(wording.chat);
    result.found = in_quotes(answer.content);
    if (answer.finish_reason != "stop") result.found += ", ended by " + answer.finish_reason;
    const auto num_commas = std::count(answer.content.begin(), answer.content.end(), ',');
    return !answer.content.empty() && answer.finish_reason == "stop" &&
           (wording.num_parts == 0 || num_commas == wording.num_parts - 1);
  }

  bool reasoning(const Wording& wording, GateResult& result) {
    const ChatAnswer answer = ask(wording.product);
    result.found = in_quotes(answer.content);
    if (answer.reasoning.empty()) result.found += ", without reasoning";
    return !answer.reasoning.empty() &&
           contains(answer.content, std::to_string(wording.a * wording.b)) &&
           !contains(answer.content, "<think>");
  }

  bool tools(const Wording& wording, GateResult& result) {
    std::vector<json::Member> with_tools = fields(0.6);
    with_tools.emplace_back("tools", json::parse(R"([{"type":"function","function":{
        "name":"get_weather","description":"Get the current weather for a city","parameters":{
        "type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}])"));
    Value messages = Value::array({text_message("user", wording.weather)});
    const ChatAnswer first = client_.ask(messages, with_tools);
    if (first.calls.empty()) {
      result.found = "no call, but " + in_quotes(first.content);
      return false;
    }
    const ChatCall& call = first.calls[0];
    result.found = shortened(call.name + " " + call.arguments);
    const std::optional<std::string> city = city_of(call);
    if (call.name != "get_weather" || !city || !contains(lower(*city), lower(wording.city)))
      return false;
    const Value weather = Value::object({{"city", Value::string(wording.city)},
                                         {"temp_c", Value::integer(wording.temperature)},
                                         {"sky", Value::string("overcast")}});
    messages.items().push_back(history_message(first));
    for (const ChatCall& each : first.calls)  // every call needs a result
      messages.items().push_back(tool_message(each.id, json::dump(weather)));
    const ChatAnswer second = client_.ask(messages, with_tools);
    result.found += " -> " + in_quotes(second.content);
    return contains(second.content, std::to_string(wording.temperature));
  }

  static std::optional<std::string> city_of(const ChatCall& call) {
    try {
      const Value arguments = json::parse(call.arguments);
      const Value* city = arguments.find("city");
      if (city != nullptr && city->is_string()) return city->as_string();
    } catch (const Error&) {  // the model's arguments are no JSON: the gate fails and shows them
    }
    return std::nullopt;
  }

  // A code at `place` (0 to 1) of an archive that fills the context.
  bool context(double place, const std::string& code, const std::string& question,
               GateResult& result) {
    const int64_t context_tokens = report_.context_tokens;
    if (context_tokens <= 0)
      throw Error(ErrorCode::kNotFound,
                  "the server does not say its context length: give it with --scale");
    const auto num_lines = int64_t(kFilled * double(context_tokens) / line_tokens(context_tokens));
    const auto num_before = int64_t(place * double(num_lines));
    std::string text =
        archive_lines(0, num_before) + " The access code for the vault is " + code + ".";
    text += num_before == num_lines ? " Anything else is routine."
                                    : " " + archive_lines(num_before, num_lines);
    const Clock::time_point begin = Clock::now();
    const ChatAnswer answer = ask(text + "\n\n" + question + " Reply with only the code.");
    const double seconds = seconds_since(begin);
    const auto prompt_tokens = double(answer.prompt_tokens);
    result.found =
        in_quotes(answer.content) + ", " + std::to_string(answer.prompt_tokens) + " tokens";
    result.figures = {{"prompt_tokens", prompt_tokens},
                      {"cached_tokens", double(answer.cached_tokens)},
                      {"prompt_tok_s", seconds > 0 ? prompt_tokens / seconds : 0}};
    return contains(answer.content, code) && prompt_tokens >= kLeastFilled * double(context_tokens);
  }

  // Of one line in the middle of an archive that fills the context. The gate's own count holds for
  // the release's tokenizer; one that makes more of them is asked.
  double line_tokens(int64_t context_tokens) {
    constexpr int64_t kSample = 32;
    const auto middle = int64_t(kFilled * double(context_tokens) / kReleaseLineTokens / 2);
    const std::optional<int64_t> count =
        client_.count_tokens(archive_lines(middle, middle + kSample));
    return count ? std::max(kReleaseLineTokens, double(*count) / kSample) : kReleaseLineTokens;
  }

  bool speed(const Wording& wording, GateResult& result) {
    std::optional<Clock::time_point> first;
    Clock::time_point last;
    std::string text;
    const auto take = [&](const ChatPiece& piece) {
      if (piece.reasoning.empty() && piece.content.empty()) return;
      const Clock::time_point now = Clock::now();
      if (!first) first = now;
      if (std::chrono::duration<double>(now - *first).count() > options_.speed_seconds) return;
      text += piece.reasoning + piece.content;
      last = now;
    };
    client_.stream(Value::array({text_message("user", wording.story)}), fields(0.8), take,
                   [] { return true; });
    if (!first) {
      result.found = "nothing came";
      return false;
    }
    const std::optional<int64_t> counted = client_.count_tokens(text);
    const double tokens = counted ? double(*counted) : double(text.size()) / 4;
    const double seconds = std::chrono::duration<double>(last - *first).count();
    const double rate = seconds > 0 ? tokens / seconds : 0;
    result.found = rate_text(rate) + (counted ? "" : ", estimated from characters");
    result.figures = {{"tokens", tokens}, {"decode_tok_s", rate}};
    return rate >= options_.min_tokens_per_second;
  }

  static std::string rate_text(double tokens_per_second) {
    const auto tenths = int64_t(tokens_per_second * 10 + 0.5);
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " tok/s";
  }

  ChatClient& client_;
  const GateOptions& options_;
  const std::function<void(const GateReport&, const GateResult&)>& on_result_;
  std::vector<Gate> gates_;
  GateReport report_;
  int run_ = 0;  // of the gate that runs
};

}  // namespace

bool GateReport::passed() const {
  return std::all_of(results.begin(), results.end(), [](const GateResult& result) {
    return result.outcome == GateOutcome::kPassed;
  });
}

GateReport run_gates(ChatClient& client, const GateOptions& options,
                     const std::function<void(const GateReport&, const GateResult&)>& on_result) {
  return Gates(client, options, on_result).run();
}

}  // namespace onecard::client
