// Which CPU kernels may run here: found at start from CPUID and what the operating system saves,
// never from the build machine. Ordered: a machine that can run one can run those before it.
#pragma once

#include <optional>
#include <string_view>

namespace onecard::cpu {

enum class Isa {
  kPlain,       // baseline x86-64: the reference path
  kAvx2,        // AVX2 + FMA + F16C
  kAvx512Vnni,  // AVX-512 F, BW, VL, DQ, VNNI
  kAvx512Vbmi,  // and VBMI
};

/// The widest that this CPU and operating system can run.
Isa detect_isa();

const char* isa_name(Isa isa);  // "plain", "avx2", "avx512-vnni", "avx512-vbmi"
std::optional<Isa> isa_from_name(std::string_view name);

}  // namespace onecard::cpu
