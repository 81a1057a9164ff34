#include "support/program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <stdexcept>

#include "support/files.h"
#include "support/temp_dir.h"

namespace onecard::test {

ProgramResult run_onecard(const std::vector<std::string>& arguments, const std::string& input) {
  // Files, not pipes: neither side can wait for the other.
  const TempDir dir;
  const std::string in = dir.path() + "/in";
  const std::string out = dir.path() + "/out";
  const std::string err = dir.path() + "/err";
  std::ofstream(in, std::ios::binary) << input;

  std::vector<std::string> words = {std::string(ONECARD_BINARY_DIR) + "/onecard"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  constexpr int kCreate = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, in.c_str(), O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), kCreate, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), kCreate, 0600);
  pid_t child = 0;
  const int failure = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) throw std::runtime_error(words[0] + ": cannot be started");
  int status = 0;
  if (waitpid(child, &status, 0) != child) throw std::runtime_error(words[0] + ": is lost");
  ProgramResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_file(out);
  result.err = read_file(err);
  return result;
}

}  // namespace onecard::test
