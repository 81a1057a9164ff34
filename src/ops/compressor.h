#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/exec.h"
#include "tensor/view.h"

namespace onecard::ops {

/// out[g,c] = sum_i p[i] key_i[c], p = softmax over i of gate_i[c]: the `ratio` tokens of a group,
/// each channel by itself. The keys and gates of token i of group g are row (g * ratio + i) of
/// `keys` and `gates`: [groups * ratio, dim]. out: [groups, dim].
void pool_groups(const Exec& exec, View<const float> keys, View<const float> gates, int64_t ratio,
                 View<float> out);

/// The groups that the newest tokens of several sequences are in, a token each. Arrays of a token
/// each; the key of position p is row p % num_slots of its ring, f32 [dim].
struct OpenGroups {
  std::span<const int64_t> positions;  // of the newest tokens
  std::span<const std::byte* const> key_rings;
  std::span<const std::byte* const> gate_rings;
  int64_t num_slots = 1;
};

/// out row t = the pooled group of token t: its last member, of which `keys` and `gates` row t are
/// key and gate; the other ratio - 1 come from the rings. Zero where the token is not the last of
/// its group. keys, gates, out: [tokens, dim].
void pool_open_groups(const Exec& exec, View<const float> keys, View<const float> gates,
                      const OpenGroups& open, int64_t ratio, View<float> out);

}  // namespace onecard::ops
