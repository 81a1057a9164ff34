// Runs a fuzz target without libFuzzer, so that every build has every target: replays the seeds,
// then mutates them.
//
//   fuzz_NAME CORPUS... [-runs=N] [-max_total_time=SECONDS] [-seed=N]     (libFuzzer's spelling)
//
// Mutation is blind (no coverage feedback), but a finding is real and repeatable: before each input
// it is written to
// ./crash-NAME, and that file is removed at a clean end.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;
constexpr size_t kMaxInputBytes = 1 << 16;

// Bytes that parsers care about; half of all replacements come from here.
constexpr char kInteresting[] = "{}[]\":,\\0123456789-.eE<>/ntfu \n\r\t";

struct Options {
  std::vector<std::string> paths;
  int64_t runs = -1;  // no bound but the time; without a time, the seeds only
  int64_t seconds = 0;
  uint64_t seed = 1;
};

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto value = [&] { return std::stoll(arg.substr(arg.find('=') + 1)); };
    if (arg.starts_with("-runs="))
      options.runs = value();
    else if (arg.starts_with("-max_total_time="))
      options.seconds = value();
    else if (arg.starts_with("-seed="))
      options.seed = static_cast<uint64_t>(value());
    else
      options.paths.push_back(arg);
  }
  return options;
}

std::vector<Bytes> read_seeds(const std::vector<std::string>& paths) {
  std::vector<std::filesystem::path> files;
  for (const std::string& path : paths) {
    if (std::filesystem::is_directory(path)) {
      for (const auto& entry : std::filesystem::directory_iterator(path))
        if (entry.is_regular_file()) files.push_back(entry.path());
    } else {
      files.emplace_back(path);
    }
  }
  std::sort(files.begin(), files.end());  // the order of a directory is not repeatable
  std::vector<Bytes> seeds;
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    if (!in) {
      std::fprintf(stderr, "cannot read %s\n", file.c_str());
      std::exit(2);
    }
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return seeds;
}

class Mutator {
 public:
  Mutator(const std::vector<Bytes>& seeds, uint64_t seed) : seeds_(seeds), random_(seed) {}

  Bytes next() {
    Bytes input = seeds_.empty() ? Bytes() : seeds_[pick(seeds_.size())];
    const size_t steps = 1 + pick(8);
    for (size_t i = 0; i < steps; ++i) mutate(input);
    if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
    return input;
  }

 private:
  size_t pick(size_t count) { return static_cast<size_t>(random_() % count); }

  uint8_t byte() {
    if (pick(2) == 0) return static_cast<uint8_t>(kInteresting[pick(sizeof(kInteresting) - 1)]);
    return static_cast<uint8_t>(random_());
  }

  void mutate(Bytes& input) {
    const size_t at = pick(input.size() + 1);
    const size_t length = std::min(input.size() - at, pick(32) + 1);
    const auto here = input.begin() + static_cast<ptrdiff_t>(at);
    switch (pick(7)) {
      case 0:  // replace a byte
        if (at < input.size()) input[at] = byte();
        break;
      case 1:  // flip a bit
        if (at < input.size()) input[at] ^= static_cast<uint8_t>(1u << pick(8));
        break;
      case 2:  // insert a byte
        input.insert(here, byte());
        break;
      case 3:  // remove a run
        input.erase(here, here + static_cast<ptrdiff_t>(length));
        break;
      case 4: {  // repeat a run
        const Bytes run(here, here + static_cast<ptrdiff_t>(length));
        for (size_t i = pick(4) + 1; i > 0; --i)
          input.insert(input.begin() + static_cast<ptrdiff_t>(at), run.begin(), run.end());
        break;
      }
      case 5: {  // splice in a piece of another seed
        const Bytes& other = seeds_.empty() ? input : seeds_[pick(seeds_.size())];
        const size_t from = pick(other.size() + 1);
        const size_t count = std::min(other.size() - from, pick(64));
        const Bytes piece(other.begin() + static_cast<ptrdiff_t>(from),
                          other.begin() + static_cast<ptrdiff_t>(from + count));
        input.insert(here, piece.begin(), piece.end());
        break;
      }
      default:  // cut the end off
        input.resize(at);
        break;
    }
  }

  const std::vector<Bytes>& seeds_;
  std::mt19937_64 random_;
};

// What the signal handler writes: the input now under test.
std::string g_crash_file;
const Bytes* g_input = nullptr;

extern "C" void on_crash(int signal_number) {
  const int file = ::open(g_crash_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file >= 0 && g_input != nullptr) {
    [[maybe_unused]] const ssize_t written = ::write(file, g_input->data(), g_input->size());
    ::close(file);
  }
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

void test(const Bytes& input) {
  g_input = &input;
  LLVMFuzzerTestOneInput(input.data(), input.size());
  g_input = nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  g_crash_file = "crash-" + std::filesystem::path(argv[0]).filename().string();
  for (const int signal_number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL})
    std::signal(signal_number, on_crash);

  const std::vector<Bytes> seeds = read_seeds(options.paths);
  for (const Bytes& seed : seeds) test(seed);

  Mutator mutator(seeds, options.seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(options.seconds);
  int64_t runs = 0;
  for (;; ++runs) {
    if (options.runs >= 0 && runs >= options.runs) break;
    if (options.seconds > 0 ? std::chrono::steady_clock::now() >= end : options.runs < 0) break;
    test(mutator.next());
  }
  std::printf("%zu seeds, %lld mutated inputs, seed %llu: no crash\n", seeds.size(),
              static_cast<long long>(runs), static_cast<unsigned long long>(options.seed));
  return 0;
}
