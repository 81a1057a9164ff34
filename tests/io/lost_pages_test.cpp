#include "io/lost_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "io/file.h"
#include "support/temp_dir.h"

namespace onecard::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Pages of 'a', the last one half full.
std::string write_pages(const test::TempDir& dir, size_t num_pages) {
  const std::string path = dir.file("data");
  std::ofstream(path, std::ios::binary)
      << std::string(num_pages * size_t(::sysconf(_SC_PAGESIZE)) - 100, 'a');
  return path;
}

char byte_of(const MappedFile& file, size_t at) {
  return std::to_integer<char>(static_cast<const volatile std::byte*>(file.bytes().data())[at]);
}

TEST(LostPages, ReadAsZerosAndAreAnError) {
  guard_lost_pages();
  const test::TempDir dir;
  const auto page = size_t(::sysconf(_SC_PAGESIZE));
  const std::string path = write_pages(dir, 4);
  {
    const MappedFile file = MappedFile::open(path);
    EXPECT_EQ(byte_of(file, 3 * page), 'a');
    check_lost_pages();
    std::filesystem::resize_file(path, page + 10);
    EXPECT_EQ(byte_of(file, 0), 'a');
    EXPECT_EQ(byte_of(file, page + 10), 0);  // the rest of the last page that there is
    check_lost_pages();
    EXPECT_EQ(byte_of(file, 2 * page + 5), 0);
    EXPECT_THAT(
        [] { check_lost_pages(); },
        testing::ThrowsMessage<Error>(AllOf(HasSubstr(path), HasSubstr("became shorter"),
                                            HasSubstr(std::to_string(4 * page - 100) + " bytes"))));
    EXPECT_EQ(byte_of(file, 3 * page), 0);
    EXPECT_EQ(byte_of(file, page + 9), 'a');
  }
  check_lost_pages();  // nobody reads it any more
}

TEST(LostPages, FoundByManyThreadsAtOnce) {
  guard_lost_pages();
  const test::TempDir dir;
  const std::string path = write_pages(dir, 64);
  const auto page = size_t(::sysconf(_SC_PAGESIZE));
  const MappedFile file = MappedFile::open(path);
  std::filesystem::resize_file(path, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t)
    threads.emplace_back([&file, page, t] {
      for (size_t i = 64; i-- > 0;) EXPECT_EQ(byte_of(file, i * page + t), 0);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THROW(check_lost_pages(), Error);
}

TEST(LostPagesDeathTest, OtherBusErrorsStillEndTheProcess) {
  guard_lost_pages();
  EXPECT_EXIT(::raise(SIGBUS), testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace onecard::io
