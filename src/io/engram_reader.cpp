#include "io/engram_reader.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "io/safetensors.h"

namespace onecard::io {
namespace {

// Neighbouring rows are read at once up to this many; more would keep other readers waiting.
constexpr int64_t kMaxRunRows = 64;

struct Wanted {
  int64_t row_id;
  int64_t out_idx;
};

// Rows [first_row_id, first_row_id + num_rows), asked for by wanted[begin, end).
struct Run {
  int64_t first_row_id = 0;
  int64_t num_rows = 0;
  size_t begin = 0;
  size_t end = 0;
};

std::vector<Run> plan_runs(std::span<const Wanted> wanted) {
  std::vector<Run> runs;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int64_t row_id = wanted[i].row_id;
    if (runs.empty() || row_id > runs.back().first_row_id + runs.back().num_rows ||
        row_id - runs.back().first_row_id >= kMaxRunRows)
      runs.push_back({row_id, 0, i, i});
    Run& run = runs.back();
    run.num_rows = row_id - run.first_row_id + 1;
    run.end = i + 1;
  }
  return runs;
}

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table{};
    for (size_t i = 0; i < table.size(); ++i) table[i] = e4m3_to_f32(uint8_t(i));
    return table;
  }();
  return values;
}

void decode_row(const RowTable& table, const std::byte* values, const std::byte* scales,
                float* out) {
  const auto width = size_t(table.width);
  switch (table.dtype) {
    case DType::kF32:
      std::memcpy(out, values, width * sizeof(float));
      return;
    case DType::kF16:
    case DType::kBf16:
      for (size_t i = 0; i < width; ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, values + 2 * i, sizeof(bits));
        out[i] = table.dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
      }
      return;
    default: {  // kF8E4m3; the reader's constructor refuses the others
      const std::array<float, 256>& decoded = e4m3_values();
      const auto block = size_t(table.width / table.num_scales);
      for (size_t i = 0; i < width; i += block) {
        const float scale = e8m0_to_f32(std::to_integer<uint8_t>(scales[i / block]));
        for (size_t j = i; j < i + block; ++j)
          out[j] = decoded[std::to_integer<size_t>(values[j])] * scale;
      }
    }
  }
}

void check_table(const RowTable& table) {
  const auto fail = [&](const std::string& what, ErrorCode code = ErrorCode::kDataCorrupt) {
    throw Error(code, "table " + json::quoted(table.name) + ": " + what);
  };
  if (table.num_rows < 1 || table.width < 1 || table.values == nullptr)
    fail("expected rows and columns, found " + shape_text(std::array{table.num_rows, table.width}));
  switch (table.dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBf16:
      return;
    case DType::kF8E4m3:
      if (table.scales == nullptr || table.num_scales < 1 || table.width % table.num_scales != 0)
        fail("expected a number of scales a row that divides the width " +
             std::to_string(table.width) + ", found " + std::to_string(table.num_scales));
      return;
    default:
      fail(std::string("expected F8_E4M3, F32, F16 or BF16, found ") + dtype_name(table.dtype),
           ErrorCode::kUnsupported);
  }
}

}  // namespace

// What a request and the readers share. Runs are taken by readers one at a time; the request is
// ready when none is left and none is being read.
class EngramReader::Request::State {
 public:
  State(const RowTable& table, std::span<const int64_t> row_ids, View<float> out)
      : table_(table), out_(out) {
    wanted_.reserve(row_ids.size());
    for (size_t i = 0; i < row_ids.size(); ++i) wanted_.push_back({row_ids[i], int64_t(i)});
    std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) {
      return a.row_id != b.row_id ? a.row_id < b.row_id : a.out_idx < b.out_idx;
    });
    runs_ = plan_runs(wanted_);
  }

  bool ready() const {
    const std::lock_guard lock(mutex_);
    return ready_locked();
  }

  void wait() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ready_locked(); });
    if (error_) std::rethrow_exception(error_);
  }

  // Ends the request as soon as no reader touches `out` any more.
  void abandon() {
    std::unique_lock lock(mutex_);
    next_run_ = runs_.size();
    changed_.wait(lock, [this] { return num_active_ == 0; });
  }

  // Runs that no reader has begun fail; for the end of the reader.
  void cancel() {
    const std::lock_guard lock(mutex_);
    if (next_run_ == runs_.size()) return;
    next_run_ = runs_.size();
    if (!error_)
      error_ = std::make_exception_ptr(
          Error(ErrorCode::kCancelled,
                "table " + json::quoted(table_.name) + ": reading rows: the reader was stopped"));
    changed_.notify_all();
  }

  // Reads the next run into `scratch` and then into the output. False when there is none.
  bool read_next(std::vector<std::byte>& scratch) {
    Run run;
    {
      const std::lock_guard lock(mutex_);
      if (next_run_ == runs_.size()) return false;
      run = runs_[next_run_++];
      ++num_active_;
    }
    std::exception_ptr error;
    try {
      read(run, scratch);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    --num_active_;
    if (error) {
      if (!error_) error_ = error;
      next_run_ = runs_.size();  // the rest is of no use
    }
    if (ready_locked()) changed_.notify_all();
    return true;
  }

 private:
  bool ready_locked() const { return next_run_ == runs_.size() && num_active_ == 0; }

  void read(const Run& run, std::vector<std::byte>& scratch) {
    const int64_t row_bytes = table_.width * dtype_size(table_.dtype);
    const int64_t values_bytes = run.num_rows * row_bytes;
    const int64_t scales_bytes = run.num_rows * table_.num_scales;
    scratch.resize(size_t(values_bytes + scales_bytes));
    const std::span<std::byte> values(scratch.data(), size_t(values_bytes));
    const std::span<std::byte> scales(scratch.data() + values_bytes, size_t(scales_bytes));
    read_part(*table_.values, table_.values_offset_bytes + run.first_row_id * row_bytes, values,
              run);
    if (!scales.empty())
      read_part(*table_.scales, table_.scales_offset_bytes + run.first_row_id * table_.num_scales,
                scales, run);
    for (size_t i = run.begin; i < run.end; ++i) {
      const Wanted& wanted = wanted_[i];
      float* row = out_.row(wanted.out_idx);
      if (i > run.begin && wanted_[i - 1].row_id == wanted.row_id) {
        std::copy_n(out_.row(wanted_[i - 1].out_idx), table_.width, row);
        continue;
      }
      const int64_t idx = wanted.row_id - run.first_row_id;
      decode_row(table_, values.data() + idx * row_bytes, scales.data() + idx * table_.num_scales,
                 row);
    }
  }

  void read_part(const ByteSource& source, int64_t offset, std::span<std::byte> out,
                 const Run& run) const {
    try {
      source.read_exact(offset, out);
    } catch (const Error& error) {
      throw Error(error.code(), "table " + json::quoted(table_.name) + ", row " +
                                    std::to_string(run.first_row_id) + ": " + error.what());
    }
  }

  const RowTable& table_;
  const View<float> out_;
  std::vector<Wanted> wanted_;
  std::vector<Run> runs_;
  mutable std::mutex mutex_;  // guards next_run_, num_active_ and error_
  mutable std::condition_variable changed_;
  size_t next_run_ = 0;
  int num_active_ = 0;
  std::exception_ptr error_;
};

EngramReader::Request::~Request() {
  if (state_) state_->abandon();
}

EngramReader::Request::Request(Request&&) noexcept = default;

EngramReader::Request& EngramReader::Request::operator=(Request&& other) noexcept {
  std::swap(state_, other.state_);  // what was ours ends with `other`
  return *this;
}

bool EngramReader::Request::ready() const {
  require(valid(), ErrorCode::kInvalidArgument, "EngramReader: an empty request was asked");
  return state_->ready();
}

void EngramReader::Request::wait() const {
  require(valid(), ErrorCode::kInvalidArgument, "EngramReader: an empty request was waited for");
  state_->wait();
}

namespace {

class PreadEngramReader final : public EngramReader {
 public:
  PreadEngramReader(std::vector<RowTable> tables, int num_threads) : tables_(std::move(tables)) {
    require(num_threads >= 1, ErrorCode::kInvalidArgument,
            "EngramReader: at least one thread is needed");
    for (const RowTable& table : tables_) check_table(table);
    for (int i = 0; i < num_threads; ++i)
      threads_.emplace_back([this](const std::stop_token& stop) { serve(stop); });
  }

  ~PreadEngramReader() override {
    for (std::jthread& thread : threads_) thread.request_stop();
    threads_.clear();  // joins
    for (const std::shared_ptr<Request::State>& request : queue_) request->cancel();
  }

  Request submit(int64_t table_idx, std::span<const int64_t> row_ids, View<float> out) override {
    if (table_idx < 0 || table_idx >= int64_t(tables_.size()))
      throw Error(ErrorCode::kInvalidArgument, "EngramReader: expected a table below " +
                                                   std::to_string(tables_.size()) + ", found " +
                                                   std::to_string(table_idx));
    const RowTable& table = tables_[size_t(table_idx)];
    if (out.rows != int64_t(row_ids.size()) || out.cols != table.width)
      throw Error(ErrorCode::kInvalidArgument,
                  "table " + json::quoted(table.name) + ": expected an output of " +
                      shape_text(std::array{int64_t(row_ids.size()), table.width}) + ", found " +
                      shape_text(std::array{out.rows, out.cols}));
    for (const int64_t row_id : row_ids)
      if (row_id < 0 || row_id >= table.num_rows)
        throw Error(ErrorCode::kInvalidArgument,
                    "table " + json::quoted(table.name) + ": expected rows below " +
                        std::to_string(table.num_rows) + ", found " + std::to_string(row_id));
    auto state = std::make_shared<Request::State>(table, row_ids, out);
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(state);
    }
    work_.notify_all();
    return Request(std::move(state));
  }

  std::span<const RowTable> tables() const override { return tables_; }

 private:
  // All readers work on the oldest request together; one leaves the queue when it has no run left.
  void serve(const std::stop_token& stop) {
    std::vector<std::byte> scratch;
    while (true) {
      std::shared_ptr<Request::State> request;
      {
        std::unique_lock lock(mutex_);
        if (!work_.wait(lock, stop, [this] { return !queue_.empty(); })) return;
        request = queue_.front();
      }
      while (!stop.stop_requested() && request->read_next(scratch)) {
      }
      if (stop.stop_requested()) return;
      const std::lock_guard lock(mutex_);
      if (!queue_.empty() && queue_.front() == request) queue_.pop_front();
    }
  }

  const std::vector<RowTable> tables_;
  std::mutex mutex_;  // guards queue_
  std::condition_variable_any work_;
  std::deque<std::shared_ptr<Request::State>> queue_;
  std::vector<std::jthread> threads_;  // last: they use everything above
};

}  // namespace

RowTable open_row_table(const Checkpoint& checkpoint, const std::string& prefix) {
  const StoredTensor& weight = checkpoint.at(prefix + ".weight");
  RowTable table;
  table.name = prefix;
  table.dtype = weight.dtype;
  const auto require_rank_2 = [](const StoredTensor& tensor) {
    if (tensor.shape.size() != 2)
      throw Error(ErrorCode::kDataCorrupt,
                  tensor.file->path() + ": tensor " + json::quoted(tensor.name) +
                      ": expected rows and columns, found " + shape_text(tensor.shape));
  };
  require_rank_2(weight);
  table.num_rows = weight.shape[0];
  table.width = weight.shape[1];
  const auto values = std::make_shared<File>(File::open(weight.file->path(), Access::kRandom));
  table.values = values;
  table.values_offset_bytes = weight.offset_bytes;
  if (table.dtype == DType::kF8E4m3) {
    const StoredTensor& scale = checkpoint.at(prefix + ".scale");
    require_rank_2(scale);
    if (scale.dtype != DType::kF8E8m0 || scale.shape[0] != table.num_rows)
      throw Error(ErrorCode::kDataCorrupt,
                  scale.file->path() + ": tensor " + json::quoted(scale.name) +
                      ": expected F8_E8M0 with " + std::to_string(table.num_rows) +
                      " rows, found " + dtype_name(scale.dtype) + " " + shape_text(scale.shape));
    table.num_scales = scale.shape[1];
    table.scales = scale.file == weight.file
                       ? values
                       : std::make_shared<File>(File::open(scale.file->path(), Access::kRandom));
    table.scales_offset_bytes = scale.offset_bytes;
  }
  check_table(table);
  return table;
}

std::unique_ptr<EngramReader> make_pread_engram_reader(std::vector<RowTable> tables,
                                                       int num_threads) {
  return std::make_unique<PreadEngramReader>(std::move(tables), num_threads);
}

}  // namespace onecard::io
