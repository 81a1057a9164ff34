#include "cli/line_reader.h"

#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <iostream>

#include "base/error.h"

namespace onecard::cli {
namespace {

constexpr int kHistoryLines = 1000;
constexpr int kWaitMilliseconds = 200;
constexpr size_t kInvalid = size_t(-1), kIncomplete = size_t(-2);  // of mbrtowc

// One character of the terminal, in the form that libedit asks for: 1, 0 at the end, -1 when the
// line is given up. libedit's own reader tries again after the first signal, so that ctrl-C would
// do nothing. The flag is looked at between waits: a signal may come before one, or to another
// thread.
int read_character(EditLine* editor, wchar_t* character) {
  void* data = nullptr;
  el_get(editor, EL_CLIENTDATA, &data);
  const auto& interrupted = *static_cast<const std::atomic<bool>*>(data);
  std::mbstate_t state{};
  while (!interrupted.load()) {
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (::poll(&input, 1, kWaitMilliseconds) <= 0) continue;
    char byte = 0;
    const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return int(count);
    size_t length = std::mbrtowc(character, &byte, 1, &state);
    if (length == kInvalid) {  // what came before was half a character: this byte begins another
      state = {};
      length = std::mbrtowc(character, &byte, 1, &state);
    }
    if (length == kIncomplete) continue;
    if (length != kInvalid) return 1;
    state = {};
  }
  return -1;
}

std::string g_prompt;  // libedit asks a function for it
char* prompt_of(EditLine*) { return g_prompt.data(); }

// Characters of several bytes need a locale that knows them.
void set_utf8_locale() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

struct LineReader::Editor {
  EditLine* line = nullptr;
  History* history = nullptr;
  HistEvent event{};
  std::string file;

  ~Editor() {
    if (history != nullptr) history_end(history);
    if (line != nullptr) el_end(line);
  }
};

LineReader::LineReader(std::atomic<bool>& interrupted, const std::string& history_file)
    : interrupted_(interrupted) {
  if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0) return;
  set_utf8_locale();
  editor_ = std::make_unique<Editor>();
  Editor& editor = *editor_;
  editor.line = el_init("onecard", stdin, stdout, stderr);
  editor.history = history_init();
  if (editor.line == nullptr || editor.history == nullptr)
    throw Error(ErrorCode::kResourceExhausted, "the line editor does not start");
  history(editor.history, &editor.event, H_SETSIZE, kHistoryLines);
  history(editor.history, &editor.event, H_SETUNIQUE, 1);
  el_set(editor.line, EL_CLIENTDATA, &interrupted_);
  el_set(editor.line, EL_PROMPT, &prompt_of);
  el_set(editor.line, EL_EDITOR, "emacs");
  el_set(editor.line, EL_HIST, history, editor.history);
  el_set(editor.line, EL_GETCFN, &read_character);
  el_set(editor.line, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  editor.file = history_file;
  if (!history_file.empty())
    history(editor.history, &editor.event, H_LOAD, history_file.c_str());  // none yet: none loaded
}

LineReader::~LineReader() = default;

std::optional<std::string> LineReader::read(const std::string& prompt) {
  interrupted_.store(false);
  if (!interactive()) {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  g_prompt = prompt;
  // Before the prompt is shown, not after it as el_gets does: keys that answer the prompt at once
  // would still be handled by the terminal, which drops what is typed when ctrl-C comes.
  el_set(editor_->line, EL_PREP_TERM, 1);
  int count = 0;
  const char* const text = el_gets(editor_->line, &count);
  if (text == nullptr || count <= 0) {
    if (!interrupted_.exchange(false)) return std::nullopt;
    el_reset(editor_->line);
    std::fputs("\n", stdout);
    return "";
  }
  std::string line(text, size_t(count));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  return line;
}

void LineReader::remember(const std::string& text) {
  if (!interactive() || text.empty()) return;
  history(editor_->history, &editor_->event, H_ENTER, text.c_str());
  if (editor_->file.empty()) return;
  // Questions are private: the file is made for its owner alone before anything is written to it.
  const int fd = ::open(editor_->file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0 || history(editor_->history, &editor_->event, H_SAVE, editor_->file.c_str()) < 0) {
    std::fprintf(stderr, "onecard: %s: %s: the history is not kept\n", editor_->file.c_str(),
                 std::strerror(errno));
    editor_->file.clear();
  }
  if (fd >= 0) ::close(fd);
}

}  // namespace onecard::cli
