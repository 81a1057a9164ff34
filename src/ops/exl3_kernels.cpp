#include "ops/exl3_kernels.h"

#include <array>
#include <vector>

#include "base/error.h"
#include "ops/cpu/exl3_isa.h"
#include "quant/exl3/codebook.h"

namespace onecard::ops {
namespace {

using onecard::cpu::Isa;
constexpr size_t kNumIsas = 4;
constexpr std::array<const char*, 3> kPrecisionNames{"int16", "int8", "exact"};

// Preferred kernels last: direct ones before panels where both take a row count, since a later
// entry replaces an earlier one only for the rows that it takes.
std::vector<const Exl3Kernel*> kernels_up_to(Isa isa) {
  std::vector<const Exl3Kernel*> kernels;
  for (const auto& table :
       {cpu_exl3::kPlainKernels, cpu_exl3::kAvx2PanelKernels, cpu_exl3::kAvx512PanelKernels,
        cpu_exl3::kAvx2DirectKernels, cpu_exl3::kVnniKernels, cpu_exl3::kVbmiKernels})
    for (size_t i = 0; i < table.size; ++i)
      if (table.kernels[i].isa <= isa) kernels.push_back(&table.kernels[i]);
  return kernels;
}

}  // namespace

std::span<const Exl3Kernel* const> exl3_kernels(Isa isa) {
  static const std::array<std::vector<const Exl3Kernel*>, kNumIsas> kernels = [] {
    std::array<std::vector<const Exl3Kernel*>, kNumIsas> all;
    for (size_t i = 0; i < kNumIsas; ++i) all[i] = kernels_up_to(Isa(i));
    return all;
  }();
  return kernels[size_t(isa)];
}

const char* exl3_precision_name(Exl3Precision precision) {
  return kPrecisionNames[size_t(precision)];
}

std::optional<Exl3Precision> exl3_precision_from_name(std::string_view name) {
  for (size_t i = 0; i < kPrecisionNames.size(); ++i)
    if (name == kPrecisionNames[i]) return Exl3Precision(i);
  return std::nullopt;
}

const Exl3Steps& exl3_steps(Isa isa) {
  return isa == Isa::kPlain ? cpu_exl3::kPlainSteps : cpu_exl3::kAvx2Steps;
}

float exl3_gain(Exl3Precision precision) {
  return precision == Exl3Precision::kF32 ? 1.0f : float(exl3::kMul1Scale);
}

Exl3KernelSet::Exl3KernelSet(Isa isa, Exl3Precision precision, exl3::Codebook codebook, int bits) {
  require(bits >= 1 && bits <= 8, ErrorCode::kInvalidArgument, "exl3 kernels: bits must be 1..8");
  if (codebook != exl3::Codebook::kMul1) precision = Exl3Precision::kF32;
  const auto fill = [&](Exl3Precision wanted) {
    bool any = false;
    for (const Exl3Kernel* kernel : exl3_kernels(isa)) {
      if (kernel->precision != wanted || kernel->codebook != codebook || kernel->bits != bits)
        continue;
      // An int8 kernel of baseline code exists as a reference only.
      if (wanted == Exl3Precision::kInt8 && isa != Isa::kPlain && kernel->isa == Isa::kPlain)
        continue;
      any = true;
      for (int rows = 1; rows <= kSmallRows + 1; ++rows)
        if (rows <= kernel->max_rows && (rows <= kSmallRows || kernel->max_rows == kExl3MaxRows))
          use(rows, *kernel);
    }
    return any;
  };
  if (!fill(precision)) fill(Exl3Precision::kInt16);
}

void Exl3KernelSet::use(int rows, const Exl3Kernel& kernel) { by_rows_[rows - 1] = &kernel; }

}  // namespace onecard::ops
