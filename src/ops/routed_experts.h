// The routed experts of one layer on the device, all of them resident there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/exec.h"
#include "ops/linear.h"
#include "quant/exl3/matrix.h"
#include "tensor/view.h"

namespace onecard::ops {

/// A layer's experts, all EXL3 or all in the plain formats. EXL3 matrices of one expert, and of
/// different experts, may differ in bits and codebook; where all are MUL1 of the same 3 to 6 bits
/// in the unit layout the kernels for these bits run.
struct RoutedExperts {
  const std::byte* table = nullptr;  // device memory: what one of the tables below has
  int instance = 0;                  // kPlainExperts, or from routed_experts_table()
  int64_t num_experts = 0;           // at most kMaxRoutedExperts
  int64_t hidden_size = 0;           // EXL3: both multiples of 128
  int64_t intermediate_size = 0;
  float swiglu_limit = 10;
};
constexpr int64_t kMaxRoutedExperts = 1024;
constexpr int kPlainExperts = -1;

/// The bytes of a table of these experts, whose views hold device pointers; sets `instance`.
std::vector<std::byte> routed_experts_table(std::span<const exl3::ExpertView> experts,
                                            int& instance);

/// One expert in plain formats: w1, w3 [intermediate, hidden], w2 [hidden, intermediate].
struct PlainExpert {
  LinearWeight gate, up, down;
};
/// The same for experts in plain formats, which may differ; instance is then kPlainExperts. Throws
/// kUnsupported for an EXL3 matrix.
std::vector<std::byte> plain_experts_table(std::span<const PlainExpert> experts);

/// out[t,:] += sum over the row's experts e, in the order given, of
///   w2_e( weights[t,e] * silu(min(w1_e x, limit)) * clamp(w3_e x, +-limit) )
/// x, out: [tokens, hidden] f32, apart; expert_ids, weights: [tokens, experts_per_token], dense
/// rows, a row's ids all different. CUDA alone; never waits for the device. A row's result does not
/// depend on the other rows. Throws kUnsupported on a CPU exec, kInvalidArgument on a bad shape,
/// kResourceExhausted without scratch for even a few rows.
void routed_experts_add(const Exec& exec, const RoutedExperts& experts, View<const float> x,
                        View<const int32_t> expert_ids, View<const float> weights, View<float> out);

/// EXL3: scratch bytes, counters included, that routed_experts_add() needs to take `tokens` rows in
/// one pass; with less it takes several.
int64_t routed_experts_scratch_bytes(const RoutedExperts& experts, int64_t tokens,
                                     int64_t experts_per_token);

}  // namespace onecard::ops
