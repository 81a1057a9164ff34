#include "io/lost_pages.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <mutex>

#include "base/error.h"

namespace onecard::io {
namespace {

struct Watched {
  // Read by the signal handler: `begin` is written last and cleared first.
  std::atomic<uintptr_t> begin{0};  // 0: free
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> lost{false};
  std::string path;  // guarded by g_mutex
};

// A checkpoint has 48 shards; two of them with a pack are far below this.
std::array<Watched, 1024> g_watched;
std::atomic<int> g_num_lost{0};
std::mutex g_mutex;  // guards who takes and frees an entry, and the paths; never the handler

static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "a signal handler may touch these");

uintptr_t page_bytes() {
  static const auto bytes = uintptr_t(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// Puts zeros in the place of the page at `address` and of all behind it: a file that lost a page
// lost those too.
bool replace_lost(uintptr_t address) {
  for (Watched& watched : g_watched) {
    const uintptr_t begin = watched.begin.load();
    const uintptr_t end = watched.end.load();
    if (begin == 0 || address < begin || address >= end) continue;
    const uintptr_t page = address & ~(page_bytes() - 1);
    // The system call itself: the C library does not promise that mmap() is safe in a handler.
    if (::syscall(SYS_mmap, page, end - page, PROT_READ,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == -1)
      return false;
    if (!watched.lost.exchange(true)) g_num_lost.fetch_add(1);
    return true;
  }
  return false;
}

void on_bus_error(int, siginfo_t* info, void*) {
  const bool sent = info->si_code <= 0;  // by a process, not by an access
  if (!sent && replace_lost(reinterpret_cast<uintptr_t>(info->si_addr))) return;
  std::signal(SIGBUS, SIG_DFL);
  std::raise(SIGBUS);
}

}  // namespace

void guard_lost_pages() {
  page_bytes();  // before a handler needs it
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

void check_lost_pages() {
  if (g_num_lost.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(g_mutex);
  for (const Watched& watched : g_watched)
    if (watched.lost.load())
      throw Error(ErrorCode::kDevice,
                  watched.path + ": the file became shorter or unreadable while in use: expected " +
                      std::to_string(watched.end.load() - watched.begin.load()) +
                      " bytes; start again when it is whole");
}

void watch_pages(std::span<const std::byte> bytes, const std::string& path) {
  const std::lock_guard lock(g_mutex);
  for (Watched& watched : g_watched) {
    if (watched.begin.load() != 0) continue;
    const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
    watched.path = path;
    watched.end.store(begin + bytes.size());
    watched.begin.store(begin);
    return;
  }
}

void unwatch_pages(std::span<const std::byte> bytes) noexcept {
  const std::lock_guard lock(g_mutex);
  for (Watched& watched : g_watched) {
    if (watched.begin.load() != reinterpret_cast<uintptr_t>(bytes.data())) continue;
    watched.begin.store(0);
    if (watched.lost.exchange(false)) g_num_lost.fetch_sub(1);
    return;
  }
}

}  // namespace onecard::io
