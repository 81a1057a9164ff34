#include "cli/flag_values.h"

#include <algorithm>
#include <charconv>
#include <thread>

#include "base/error.h"
#include "io/file.h"

namespace onecard::cli {

std::vector<int32_t> parse_numbers(const std::string& flag, std::string_view text) {
  std::vector<int32_t> numbers;
  const auto is_separator = [](char c) { return c == ',' || c == ' ' || c == '\n' || c == '\t'; };
  while (!text.empty() && is_separator(text.back())) text.remove_suffix(1);
  while (!text.empty()) {
    int32_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const auto length = size_t(end - text.data());
    if (error != std::errc() || number < 0 || (length < text.size() && !is_separator(text[length])))
      throw Error(ErrorCode::kInvalidArgument, flag +
                                                   ": expected non-negative integers separated "
                                                   "by commas, found \"" +
                                                   std::string(text.substr(0, 20)) + "\"");
    numbers.push_back(number);
    text.remove_prefix(std::min(length + 1, text.size()));
  }
  return numbers;
}

std::vector<int32_t> read_token_file(const std::string& path) {
  constexpr int64_t kMaxBytes = 64 << 20;
  return parse_numbers(path, io::read_text_file(path, kMaxBytes));
}

cpu::Isa parse_isa(const std::string& name) {
  const cpu::Isa detected = cpu::detect_isa();
  if (name.empty()) return detected;
  const auto isa = cpu::isa_from_name(name);
  if (!isa)
    throw Error(ErrorCode::kInvalidArgument,
                "--isa: expected plain, avx2, avx512-vnni or avx512-vbmi, found \"" + name + "\"");
  if (*isa > detected)
    throw Error(ErrorCode::kUnsupported,
                std::string("--isa: this CPU runs ") + cpu::isa_name(detected) + " at most");
  return *isa;
}

std::optional<ops::Exl3Precision> parse_expert_precision(const std::string& name) {
  if (name == "auto") return std::nullopt;
  const auto precision = ops::exl3_precision_from_name(name);
  if (!precision)
    throw Error(ErrorCode::kInvalidArgument,
                "--expert-precision: expected auto, exact, int16 or int8, found \"" + name + "\"");
  return precision;
}

std::shared_ptr<const CudaDevice> open_device(const std::string& name) {
  if (name == "cpu" || (name == "auto" && num_cuda_devices() == 0)) return nullptr;
  if (name != "auto" && name != "cuda")
    throw Error(ErrorCode::kInvalidArgument,
                "--device: expected auto, cpu or cuda, found \"" + name + "\"");
  return std::make_shared<CudaDevice>(0);
}

Backend backend_of(const std::shared_ptr<const CudaDevice>& device) {
  return device != nullptr ? Backend::kCuda : Backend::kCpu;
}

int thread_count(int threads) {
  require(threads >= 0, ErrorCode::kInvalidArgument, "--threads: must not be negative");
  return threads > 0 ? threads : int(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace onecard::cli
