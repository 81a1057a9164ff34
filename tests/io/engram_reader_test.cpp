#include "io/engram_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <random>

#include "base/error.h"
#include "io/safetensors_writer.h"
#include "support/temp_dir.h"
#include "tensor/buffer.h"

namespace onecard::io {
namespace {

using testing::HasSubstr;

constexpr int64_t kRows = 300;
constexpr int64_t kWidth = 64;
constexpr int64_t kScales = 2;

// Bytes that name their place, so that a row read from elsewhere shows.
uint8_t value_byte(int64_t row, int64_t col) { return uint8_t((row * 31 + col * 7) % 127); }
uint8_t scale_byte(int64_t row, int64_t block) { return uint8_t(120 + (row + block) % 9); }

void write_table(const std::string& directory, DType dtype) {
  std::vector<TensorSpec> specs{{"t.weight", dtype, {kRows, kWidth}}};
  if (dtype == DType::kF8E4m3) specs.push_back({"t.scale", DType::kF8E8m0, {kRows, kScales}});
  SafetensorsWriter writer(directory, {{"model.safetensors", std::move(specs)}});
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t col = 0; col < kWidth; ++col) {
      const auto number = float(row * 64 + col);
      if (dtype == DType::kF32) {
        writer.append("t.weight", std::as_bytes(std::span(&number, 1)));
      } else if (dtype == DType::kF8E4m3) {
        const uint8_t byte = value_byte(row, col);
        writer.append("t.weight", std::as_bytes(std::span(&byte, 1)));
      } else {
        const uint16_t bits =
            dtype == DType::kF16 ? f32_to_f16(number / 64) : f32_to_bf16(number / 64);
        writer.append("t.weight", std::as_bytes(std::span(&bits, 1)));
      }
    }
  if (dtype == DType::kF8E4m3)
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t block = 0; block < kScales; ++block) {
        const uint8_t byte = scale_byte(row, block);
        writer.append("t.scale", std::as_bytes(std::span(&byte, 1)));
      }
  writer.finish();
}

float expected(DType dtype, int64_t row, int64_t col) {
  const auto number = float(row * 64 + col);
  switch (dtype) {
    case DType::kF32:
      return number;
    case DType::kF16:
      return f16_to_f32(f32_to_f16(number / 64));
    case DType::kBf16:
      return bf16_to_f32(f32_to_bf16(number / 64));
    default:
      return e4m3_to_f32(value_byte(row, col)) *
             e8m0_to_f32(scale_byte(row, col / (kWidth / kScales)));
  }
}

class EngramReaderTables : public testing::TestWithParam<DType> {};

TEST_P(EngramReaderTables, GivesRowsInTheAskedOrder) {
  const test::TempDir dir;
  write_table(dir.path(), GetParam());
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  const auto reader = make_pread_engram_reader({open_row_table(checkpoint, "t")}, 3);
  std::mt19937 random(7);
  // Repeats, neighbours, a run longer than one read, both ends.
  std::vector<int64_t> rows{0, kRows - 1, 5, 5, 4, 6, 5, 0};
  for (int64_t row = 100; row < 200; ++row) rows.push_back(row);
  for (int i = 0; i < 200; ++i) rows.push_back(int64_t(random() % kRows));
  const auto count = int64_t(rows.size());
  Buffer<float> buffer(count * (kWidth + 3));
  const View<float> out(buffer.data(), count, kWidth, kWidth + 3);
  const EngramReader::Request request = reader->submit(0, rows, out);
  request.wait();
  EXPECT_TRUE(request.ready());
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t col = 0; col < kWidth; ++col)
      ASSERT_EQ(out.row(i)[col], expected(GetParam(), rows[size_t(i)], col)) << i << " " << col;
    EXPECT_EQ(out.row(i)[kWidth], 0) << "wrote behind row " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(, EngramReaderTables,
                         testing::Values(DType::kF8E4m3, DType::kF32, DType::kF16, DType::kBf16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

// A table in memory that counts its reads, and may hold them back or fail one.
class FaultySource final : public ByteSource {
 public:
  void read_exact(int64_t offset_bytes, std::span<std::byte> out) const override {
    const int read = num_reads_.fetch_add(1);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
    if (read == failing_read_) throw Error(ErrorCode::kIo, "the drive said no");
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = std::byte(uint8_t((offset_bytes + int64_t(i)) / 4 % 100));
  }
  void hold(bool held) {
    const std::lock_guard lock(mutex_);
    open_ = !held;
    changed_.notify_all();
  }
  void fail_read(int read_idx) { failing_read_ = read_idx; }
  int num_reads() const { return num_reads_; }

 private:
  mutable std::atomic<int> num_reads_ = 0;
  mutable std::mutex mutex_;  // guards open_
  mutable std::condition_variable changed_;
  bool open_ = true;
  int failing_read_ = -1;
};

RowTable table_over(const std::shared_ptr<FaultySource>& source) {
  return {.name = "t", .num_rows = 1000, .width = 1, .dtype = DType::kF32, .values = source};
}

TEST(EngramReader, ReadsEqualRowsOnce) {
  const auto source = std::make_shared<FaultySource>();
  const auto reader = make_pread_engram_reader({table_over(source)}, 2);
  const std::vector<int64_t> rows{9, 3, 9, 9, 3, 500};
  Buffer<float> out(6);
  reader->submit(0, rows, out.view(6, 1)).wait();
  EXPECT_EQ(source->num_reads(), 3);
  EXPECT_EQ(out[0], out[2]);
  EXPECT_EQ(out[1], out[4]);
}

TEST(EngramReader, SubmitDoesNotWaitForTheDrive) {
  const auto source = std::make_shared<FaultySource>();
  source->hold(true);
  const auto reader = make_pread_engram_reader({table_over(source)}, 1);
  const std::vector<int64_t> rows{1, 3, 5};
  Buffer<float> out(3);
  const EngramReader::Request request = reader->submit(0, rows, out.view(3, 1));
  EXPECT_FALSE(request.ready());
  source->hold(false);
  request.wait();
  EXPECT_TRUE(request.ready());
}

TEST(EngramReader, DestroyedRequestStopsReading) {
  const auto source = std::make_shared<FaultySource>();
  const auto reader = make_pread_engram_reader({table_over(source)}, 1);
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < 500; ++row) rows.push_back(2 * row);
  source->hold(true);
  std::thread opener;
  {
    Buffer<float> out(500);
    const EngramReader::Request request = reader->submit(0, rows, out.view(500, 1));
    opener = std::thread([&] { source->hold(false); });
  }  // `out` is gone: what still wrote to it would show under the address sanitizer
  opener.join();
  Buffer<float> one(1);
  reader->submit(0, std::vector<int64_t>{7}, one.view(1, 1)).wait();
  EXPECT_LE(source->num_reads(), 501);
}

TEST(EngramReader, FailedReadEndsItsRequestOnly) {
  const auto source = std::make_shared<FaultySource>();
  source->fail_read(2);
  const auto reader = make_pread_engram_reader({table_over(source)}, 1);
  const std::vector<int64_t> rows{1, 3, 5, 7, 9};
  Buffer<float> out(5);
  const EngramReader::Request bad = reader->submit(0, rows, out.view(5, 1));
  EXPECT_THAT([&] { bad.wait(); },
              testing::ThrowsMessage<Error>(
                  AllOf(HasSubstr("table \"t\", row 5"), HasSubstr("the drive said no"))));
  EXPECT_TRUE(bad.ready());
  EXPECT_NO_THROW(reader->submit(0, rows, out.view(5, 1)).wait());
}

TEST(EngramReader, ReaderThatEndsFailsWhatIsOpen) {
  const auto source = std::make_shared<FaultySource>();
  auto reader = make_pread_engram_reader({table_over(source)}, 1);
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < 500; ++row) rows.push_back(2 * row);
  Buffer<float> out(500);
  source->hold(true);
  const EngramReader::Request request = reader->submit(0, rows, out.view(500, 1));
  std::thread opener([&] { source->hold(false); });
  reader.reset();
  opener.join();
  EXPECT_TRUE(request.ready());  // finished or cancelled, but never left hanging
}

TEST(EngramReader, RefusesWhatIsNotThere) {
  const auto source = std::make_shared<FaultySource>();
  const auto reader = make_pread_engram_reader({table_over(source)}, 1);
  Buffer<float> out(2);
  const auto submit = [&](int64_t table, std::vector<int64_t> rows, View<float> view) {
    const EngramReader::Request request = reader->submit(table, rows, view);
  };
  EXPECT_THROW(submit(1, {0}, out.view(1, 1)), Error);
  EXPECT_THROW(submit(-1, {0}, out.view(1, 1)), Error);
  EXPECT_THROW(submit(0, {1000}, out.view(1, 1)), Error);
  EXPECT_THROW(submit(0, {-1}, out.view(1, 1)), Error);
  EXPECT_THROW(submit(0, {0}, out.view(2, 1)), Error);
  EXPECT_THROW(submit(0, {0}, out.view(1, 2)), Error);
  EXPECT_NO_THROW(submit(0, {}, View<float>(out.data(), 0, 1)));
  EXPECT_EQ(source->num_reads(), 0);
}

TEST(EngramReader, ShortFileIsAnIoError) {
  const test::TempDir dir;
  write_table(dir.path(), DType::kF32);
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  const auto reader = make_pread_engram_reader({open_row_table(checkpoint, "t")}, 1);
  const std::string path = dir.file("model.safetensors");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 10);
  Buffer<float> out(kWidth);
  const EngramReader::Request request =
      reader->submit(0, std::vector<int64_t>{kRows - 1}, out.view(1, kWidth));
  try {
    request.wait();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(),
                testing::AllOf(HasSubstr(path), HasSubstr("row 299"),
                               HasSubstr("expected 256 bytes"), HasSubstr("found 246")));
  }
}

TEST(EngramReader, RefusesTablesThatDoNotFitTogether) {
  const test::TempDir dir;
  SafetensorsWriter writer(dir.path(), {{"model.safetensors",
                                         {{"flat.weight", DType::kF32, {4}},
                                          {"ints.weight", DType::kI32, {1, 1}},
                                          {"bare.weight", DType::kF8E4m3, {4, 1}},
                                          {"odd.weight", DType::kF8E4m3, {1, 4}},
                                          {"odd.scale", DType::kF8E8m0, {1, 3}},
                                          {"less.weight", DType::kF8E4m3, {2, 2}},
                                          {"less.scale", DType::kF8E8m0, {1, 2}}}}});
  for (const auto& [name, size] : {std::pair<const char*, size_t>{"flat.weight", 16},
                                   {"ints.weight", 4},
                                   {"bare.weight", 4},
                                   {"odd.weight", 4},
                                   {"odd.scale", 3},
                                   {"less.weight", 4},
                                   {"less.scale", 2}})
    writer.append(name, std::vector<std::byte>(size));
  writer.finish();
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  for (const char* name : {"flat", "ints", "bare", "odd", "less", "none"})
    EXPECT_THROW(open_row_table(checkpoint, name), Error) << name;
}

}  // namespace
}  // namespace onecard::io
