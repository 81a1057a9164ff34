#include "device/cpu/isa.h"

#include <cpuid.h>

#include <array>

namespace onecard::cpu {
namespace {

constexpr std::array<std::string_view, 4> kNames{"plain", "avx2", "avx512-vnni", "avx512-vbmi"};

// Clang 14 does not know this name in __builtin_cpu_supports().
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

Isa detect_isa() {
  // The compiler's runtime checks CPUID and, through XGETBV, that the operating system saves the
  // wide registers.
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
    return Isa::kPlain;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vnni"))
    return Isa::kAvx2;
  return __builtin_cpu_supports("avx512vbmi") ? Isa::kAvx512Vbmi : Isa::kAvx512Vnni;
}

const char* isa_name(Isa isa) { return kNames[static_cast<size_t>(isa)].data(); }

std::optional<Isa> isa_from_name(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (name == kNames[i]) return static_cast<Isa>(i);
  return std::nullopt;
}

}  // namespace onecard::cpu
