// onecard chat: a conversation in the terminal, with a server or with a model in this process.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/line_reader.h"
#include "cli/local_server.h"
#include "cli/server_config.h"
#include "client/chat_client.h"
#include "io/file.h"

namespace onecard::cli {
namespace {

using json::Value;

struct ChatFlags {
  ServerConfig server;
  std::string url;
  std::string api_key;
  std::string model_name;
  std::string system;
  std::string message;
  std::optional<double> temperature;
  std::optional<int64_t> seed;
  std::optional<int64_t> max_tokens;
  std::string effort;
  std::string tools_file;
  std::string history_file;
};

constexpr const char* kHelp = R"(  /help            this
  /new             forget the conversation
  /system TEXT     set the system message, and forget the conversation
  /effort N        reasoning effort: 1 to 100, low, high, max, or none
  /temperature T   0 is greedy; without a number, the server's default
  /retry           ask the last question again
  /undo            forget the last question and its answer
  /history         show the conversation
  /tools FILE      offer the tools of a file (JSON, as in the API); without a name, none
  /quit            leave (also ctrl-D); ctrl-C stops an answer, or gives up a line
  A line that ends in a backslash goes on in the next. The arrow keys bring back what was typed.
  When the model calls a tool, you are asked for what the tool says.
)";

// Set by ctrl-C while an answer comes.
std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);
void interrupt(int) { g_interrupted.store(true); }

class Terminal {
 public:
  explicit Terminal(const std::string& history_file)
      : colour_(isatty(STDOUT_FILENO) != 0), lines_(g_interrupted, history_file) {}

  bool interactive() const { return lines_.interactive(); }

  void show(const client::ChatPiece& piece) {
    if (!piece.reasoning.empty()) section(Section::kReasoning);
    put(piece.reasoning);
    if (!piece.content.empty()) section(Section::kContent);
    put(piece.content);
    if (!piece.call_name.empty()) {
      section(Section::kNone);
      section(Section::kCall);
      put("call " + piece.call_name + " ");
    }
    put(piece.call_arguments);
    std::fflush(stdout);
  }
  void end_answer() {
    section(Section::kNone);
    std::fflush(stdout);
  }
  void note(const std::string& text) {
    put(colour_ ? "\x1b[2m" + text + "\x1b[0m\n" : text + "\n");
    std::fflush(stdout);
  }

  /// A line, or several joined where each but the last ends in a backslash. Nothing at the end.
  std::optional<std::string> read(const std::string& prompt) {
    std::string text;
    for (;;) {
      std::optional<std::string> line = lines_.read(text.empty() ? prompt : ". ");
      if (!line) return std::nullopt;
      const bool goes_on = line->ends_with('\\');
      if (goes_on) line->pop_back();
      text += *line;
      if (!goes_on) break;
      text += '\n';
    }
    lines_.remember(text);
    return text;
  }

 private:
  enum class Section { kNone, kReasoning, kContent, kCall };

  void section(Section next) {
    if (next == now_) return;
    if (colour_ && now_ != Section::kNone) put("\x1b[0m");
    if (now_ != Section::kNone)
      put(now_ == Section::kReasoning && next == Section::kContent ? "\n\n" : "\n");
    if (colour_ && next == Section::kReasoning) put("\x1b[2m");
    if (colour_ && next == Section::kCall) put("\x1b[36m");
    now_ = next;
  }
  static void put(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

  const bool colour_;
  LineReader lines_;
  Section now_ = Section::kNone;
};

constexpr const char* kPrompt = "> ";

class Chat {
 public:
  Chat(client::ChatClient& client, const ChatFlags& flags)
      : client_(client), flags_(flags), terminal_(flags.history_file) {
    reset();
    if (!flags_.tools_file.empty()) load_tools(flags_.tools_file);
  }

  int run() {
    if (!flags_.message.empty()) return ask(flags_.message) ? 0 : 1;
    if (terminal_.interactive())
      terminal_.note("Ask something; /help says what else can be typed.");
    while (const std::optional<std::string> line = terminal_.read(kPrompt)) {
      if (line->empty()) continue;
      if (line->starts_with('/')) {
        if (!command(*line)) break;
      } else {
        ask(*line);
      }
    }
    return 0;
  }

 private:
  void reset() {
    messages_ = Value::array();
    if (!flags_.system.empty())
      messages_.items().push_back(client::text_message("system", flags_.system));
  }

  void load_tools(const std::string& path) {
    constexpr int64_t kMaxBytes = 1 << 20;
    Value tools = json::parse(io::read_text_file(path, kMaxBytes));
    if (!tools.is_array())
      throw Error(ErrorCode::kInvalidArgument, path + ": has to be a JSON array of tools");
    tools_ = std::move(tools);
  }

  std::vector<json::Member> fields() const {
    std::vector<json::Member> fields;
    if (!flags_.model_name.empty()) fields.emplace_back("model", Value::string(flags_.model_name));
    if (flags_.temperature) fields.emplace_back("temperature", Value::real(*flags_.temperature));
    if (flags_.seed) fields.emplace_back("seed", Value::integer(*flags_.seed));
    if (flags_.max_tokens) fields.emplace_back("max_tokens", Value::integer(*flags_.max_tokens));
    if (!tools_.items().empty()) fields.emplace_back("tools", tools_);
    if (flags_.effort.empty()) return fields;
    const bool number = flags_.effort.find_first_not_of("0123456789") == std::string::npos;
    fields.emplace_back("reasoning_effort", number ? Value::number_lexeme(flags_.effort)
                                                   : Value::string(flags_.effort));
    return fields;
  }

  // Asks, and asks again with the results of the tools that the model calls. False: it failed.
  bool ask(const std::string& question) {
    const size_t num_before = messages_.items().size();
    messages_.items().push_back(client::text_message("user", question));
    try {
      while (answer_once()) {
      }
      return true;
    } catch (const Error& error) {
      terminal_.end_answer();
      messages_.items().resize(num_before);
      std::fprintf(stderr, "onecard: %s\n", error.what());
      return false;
    }
  }

  // True: the model called tools, and their results are among the messages.
  bool answer_once() {
    // Not reset here: a ctrl-C since the line was read means this answer.
    client::ChatAnswer answer = client_.stream(
        messages_, fields(), [this](const client::ChatPiece& piece) { terminal_.show(piece); },
        [] { return !g_interrupted.load(); });
    terminal_.end_answer();
    const bool stopped = answer.finish_reason.empty();
    if (stopped) terminal_.note("(stopped)");
    if (answer.finish_reason == "length") terminal_.note("(cut off: no room for more)");
    std::vector<Value> results;
    // Calls of a stopped answer may be half ones, and nobody is there to answer those of --message.
    if (stopped || !flags_.message.empty()) answer.calls.clear();
    for (const client::ChatCall& call : answer.calls) {
      const std::optional<std::string> result = terminal_.read(call.name + " says: ");
      if (!result) break;
      results.push_back(client::tool_message(call.id, *result));
    }
    if (results.size() < answer.calls.size()) {  // every call needs its result
      answer.calls.clear();
      results.clear();
    }
    messages_.items().push_back(client::history_message(answer));
    for (Value& result : results) messages_.items().push_back(std::move(result));
    return !results.empty();
  }

  // False: leave.
  bool command(const std::string& line) {
    const size_t blank = line.find(' ');
    const std::string name = line.substr(0, blank);
    const std::string argument = blank == std::string::npos ? "" : line.substr(blank + 1);
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/new") {
      reset();
    } else if (name == "/system") {
      flags_.system = argument;
      reset();
    } else if (name == "/effort") {
      flags_.effort = argument;
    } else if (name == "/temperature") {
      set_temperature(argument);
    } else if (name == "/tools") {
      set_tools(argument);
    } else if (name == "/undo" || name == "/retry") {
      const std::string question = undo();
      if (question.empty()) terminal_.note("There is no question yet.");
      if (!question.empty() && name == "/retry") ask(question);
    } else if (name == "/history") {
      for (const Value& message : messages_.items()) show_message(message);
    } else {
      terminal_.note(name == "/help" ? kHelp : "Unknown: " + name + "\n" + kHelp);
    }
    return true;
  }

  void show_message(const Value& message) {
    std::string text =
        message.find("role")->as_string() + ": " + message.find("content")->as_string();
    if (const Value* calls = message.find("tool_calls"))
      for (const Value& call : calls->items())
        text += "\n  call " + call.find("function")->find("name")->as_string() + " " +
                call.find("function")->find("arguments")->as_string();
    terminal_.note(text);
  }

  void set_tools(const std::string& path) {
    tools_ = Value::array();
    if (path.empty()) return;
    try {
      load_tools(path);
    } catch (const Error& error) {
      terminal_.note(error.what());
    }
  }

  void set_temperature(const std::string& text) {
    flags_.temperature.reset();
    if (text.empty()) return;
    try {
      flags_.temperature = json::parse(text).as_double();
    } catch (const Error&) {
      terminal_.note("A temperature is a number.");
    }
  }

  // The last question, which is forgotten with everything after it.
  std::string undo() {
    std::vector<Value>& messages = messages_.items();
    while (!messages.empty() && messages.back().find("role")->as_string() != "system") {
      const Value last = std::move(messages.back());
      messages.pop_back();
      if (last.find("role")->as_string() == "user") return last.find("content")->as_string();
    }
    return "";
  }

  client::ChatClient& client_;
  ChatFlags flags_;
  Terminal terminal_;
  Value messages_;
  Value tools_ = Value::array();
};

int chat(ChatFlags flags) {
  std::optional<LocalServer> local;
  if (flags.url.empty()) {
    log::set_level(log::Level::kWarn);
    flags.server.host = "127.0.0.1";
    flags.server.port = 0;
    flags.server.max_num_seqs = 1;
    local.emplace(flags.server);
    flags.url = local->url();
    flags.api_key.clear();
  }
  struct sigaction action {};
  action.sa_handler = interrupt;
  sigaction(SIGINT, &action, nullptr);
  client::ChatClient client(flags.url, flags.api_key);
  if (flags.model_name.empty()) {
    const std::vector<client::ServedModel> models = client.models();
    if (!models.empty()) flags.model_name = models.front().id;
  }
  return Chat(client, flags).run();
}

}  // namespace

void add_chat(CLI::App& app, Commands& commands) {
  const auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = app.add_subcommand(
      "chat", "Talks to a model in the terminal; reasoning is dimmed, /help lists commands");
  command->footer(R"(Examples:
  onecard chat                                     the demo model, in this process
  onecard chat --model DIR --effort none           another model, without reasoning
  onecard chat --url http://127.0.0.1:8000         a server that runs already
  onecard chat --message "What is 17 * 23?"        one question, then the end)");
  add_model_flags(*command, flags->server);
  command
      ->add_option("--url", flags->url,
                   "A server to talk to (default: none: a model in this process)")
      ->envname("ONECARD_URL");
  command->add_option("--api-key", flags->api_key, "The server's key")->envname("ONECARD_API_KEY");
  command->add_option("--model-name", flags->model_name,
                      "The model to ask for (default: the server's first)");
  command->add_option("--system", flags->system,
                      "System message that the conversation begins with");
  command->add_option("--message", flags->message, "Ask this, print the answer, leave");
  command->add_option("--temperature", flags->temperature,
                      "How freely tokens are drawn; 0 takes the likeliest (default: the server's)");
  command->add_option("--seed", flags->seed,
                      "The same seed gives the same answer (default: another one each time)");
  command->add_option("--max-tokens", flags->max_tokens,
                      "Longest answer in tokens, reasoning included (default: the context)");
  command->add_option("--effort", flags->effort,
                      "Reasoning effort: 1 to 100, low, high, max, or none");
  command->add_option("--tools", flags->tools_file,
                      "File of tools to offer: a JSON array as in the API; you are asked for what "
                      "a tool that is called says");
  command
      ->add_option("--history-file", flags->history_file,
                   "File that keeps what was typed for the next time (default: none)")
      ->envname("ONECARD_HISTORY_FILE");
  command->callback([&commands, flags] { commands.selected = [flags] { return chat(*flags); }; });
}

}  // namespace onecard::cli
