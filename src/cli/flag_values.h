// Values of flags that several subcommands share. Everything throws kInvalidArgument or
// kUnsupported naming the flag.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/cpu/isa.h"
#include "device/cuda_device.h"
#include "ops/exl3_kernels.h"

namespace onecard::cli {

/// Non-negative integers separated by commas or white space; empty text gives none.
std::vector<int32_t> parse_numbers(const std::string& flag, std::string_view text);

std::vector<int32_t> read_token_file(const std::string& path);

/// --isa: the named one, or what this CPU runs. Refuses a wider one than that.
cpu::Isa parse_isa(const std::string& name);

/// --expert-precision: "auto" is nothing.
std::optional<ops::Exl3Precision> parse_expert_precision(const std::string& name);

/// --device: the CUDA device for "cuda", and for "auto" where there is one; null is the CPU.
std::shared_ptr<const CudaDevice> open_device(const std::string& name);
/// Whose ops run on it.
Backend backend_of(const std::shared_ptr<const CudaDevice>& device);

/// --threads: 0 is one a logical CPU.
int thread_count(int threads);

}  // namespace onecard::cli
