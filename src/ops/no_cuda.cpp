// Stands in for ops/cuda in a build without CUDA: every op refuses.
#include "base/error.h"
#include "ops/cuda/kernels.h"

namespace onecard::ops::cuda {
namespace {

[[noreturn]] void refuse(const char* op) {
  throw Error(ErrorCode::kUnsupported, std::string(op) + ": this build has no CUDA backend");
}

}  // namespace

void rms_norm(const Exec&, View<const float>, std::span<const float>, float, View<float>) {
  refuse("rms_norm");
}
void linear_each(const Exec&, std::span<const LinearCall>) { refuse("linear"); }
void exl3_reconstruct_inner(const Exec&, const exl3::MatrixView&, uint16_t*) {
  refuse("exl3_reconstruct_inner");
}
void embed(const Exec&, const LinearWeight&, std::span<const int32_t>, View<float>) {
  refuse("embed");
}
void count_up(const Exec&, int64_t, int64_t, std::span<int64_t>) { refuse("count_up"); }
void visible_groups(const Exec&, int64_t, int64_t, std::span<int64_t>) { refuse("visible_groups"); }
void rope_angles(const Exec&, std::span<const int64_t>, std::span<const float>, View<float>) {
  refuse("rope_angles");
}
void rope(const Exec&, View<float>, int64_t, View<const float>, bool) { refuse("rope"); }
void pack_kv_rows(const Exec&, View<const float>, const KvRows&) { refuse("pack_kv_rows"); }
void unpack_kv_rows(const Exec&, const ConstKvRows&, View<float>) { refuse("unpack_kv_rows"); }
void fake_quantise(const Exec&, KvFormat, int64_t, View<float>) { refuse("fake_quantise"); }
void hc_begin(const Exec&, View<const float>, View<float>, View<float>) { refuse("hc_begin"); }
void hc_coefficients(const Exec&, View<const float>, const HcSite&, const HcCoefficients&) {
  refuse("hc_coefficients");
}
void hc_collapse_norm(const Exec&, View<const float>, View<const float>, std::span<const float>,
                      float, View<float>) {
  refuse("hc_collapse_norm");
}
void hc_expand(const Exec&, View<const float>, View<const float>, View<const float>, View<float>) {
  refuse("hc_expand");
}
void engram_gate_add(const Exec&, View<const float>, std::span<const float>, float, View<float>) {
  refuse("engram_gate_add");
}
void pool_groups(const Exec&, View<const float>, View<const float>, int64_t, View<float>) {
  refuse("pool_groups");
}
void pool_open_groups(const Exec&, View<const float>, View<const float>, const OpenGroups&, int64_t,
                      View<float>) {
  refuse("pool_open_groups");
}
void scatter_rows(const Exec&, const std::byte*, int64_t, std::span<std::byte* const>) {
  refuse("scatter_rows");
}
void indexer_scores(const Exec&, View<const float>, View<const float>, const ConstKvRows&,
                    const std::byte* const*, std::span<const int64_t>, const IndexLists*, int64_t,
                    View<float>) {
  refuse("indexer_scores");
}
void select_top_k(const Exec&, View<const float>, std::span<const int64_t>, const IndexLists&) {
  refuse("select_top_k");
}
void select_candidate_blocks(const Exec&, View<const float>, std::span<const int64_t>, int64_t,
                             View<float>, const IndexLists&) {
  refuse("select_candidate_blocks");
}
void attention(const Exec&, View<const float>, int64_t, const AttentionKeys&, const IndexLists*,
               std::span<const float>, View<float>) {
  refuse("attention");
}
void attention_each(const Exec&, View<const float>, const EachKeys&, const IndexLists*,
                    std::span<const float>, View<float>) {
  refuse("attention_each");
}
void route(const Exec&, View<const float>, std::span<const float>, const RouterOptions&,
           View<int32_t>, View<float>) {
  refuse("route");
}
void swiglu(const Exec&, View<const float>, View<const float>, std::span<const float>, float,
            View<float>) {
  refuse("swiglu");
}
std::vector<std::byte> routed_experts_table(std::span<const exl3::ExpertView>, int&) {
  refuse("routed_experts_table");
}
void routed_experts_add(const Exec&, const RoutedExperts&, View<const float>, View<const int32_t>,
                        View<const float>, View<float>) {
  refuse("routed_experts_add");
}
std::vector<std::byte> plain_experts_table(std::span<const PlainExpert>) {
  refuse("plain_experts_table");
}
void plain_experts_add(const Exec&, const RoutedExperts&, View<const float>, View<const int32_t>,
                       View<const float>, View<float>) {
  refuse("plain_experts_add");
}
int64_t routed_experts_scratch_bytes(const RoutedExperts&, int64_t, int64_t) {
  refuse("routed_experts_scratch_bytes");
}

}  // namespace onecard::ops::cuda
