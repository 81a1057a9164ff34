#include "quantize/pack_plan.h"

#include <array>
#include <unordered_set>

#include "base/error.h"
#include "model/stored_linear.h"

namespace onecard::quantize {
namespace {

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

// "layers.3.ffn.experts.17.w1" -> "layers.3.ffn.experts.17."; empty for what is no routed expert.
std::string_view expert_prefix(std::string_view module) {
  const size_t at = module.find(".ffn.experts.");
  if (at == std::string_view::npos) return {};
  return module.substr(0, module.rfind('.') + 1);
}

PackItem copy_of(const io::StoredTensor& tensor, const PackOptions& options) {
  PackItem item;
  item.name = item.source = std::string(tensor.name);
  DType dtype = tensor.dtype;
  if (options.narrow_f32 && dtype == DType::kF32 && tensor.shape.size() >= 2) {
    item.kind = PackItem::Kind::kNarrow;
    dtype = DType::kF16;
  }
  item.tensors.push_back({item.name, dtype, {tensor.shape.begin(), tensor.shape.end()}});
  return item;
}

PackItem matrix_item(const std::string& name, const std::string& source, int bits,
                     int64_t source_rows, int64_t row_begin, int64_t out, int64_t in,
                     exl3::Codebook codebook) {
  PackItem item;
  item.kind = PackItem::Kind::kQuantize;
  item.name = name;
  item.source = source;
  item.bits = bits;
  item.source_rows = source_rows;
  item.row_begin = row_begin;
  item.out_features = out;
  item.in_features = in;
  item.tensors.push_back({name + ".suh", DType::kF16, {in}});
  item.tensors.push_back({name + ".svh", DType::kF16, {out}});
  if (codebook == exl3::Codebook::kMul1) item.tensors.push_back({name + ".mul1", DType::kI32, {}});
  if (codebook == exl3::Codebook::kMcg) item.tensors.push_back({name + ".mcg", DType::kI32, {}});
  item.tensors.push_back({name + ".trellis", DType::kI16, {in / 16, out / 16, 16 * bits}});
  return item;
}

// The items of the module whose weight is `tensor`; empty when the format does not take it.
std::vector<PackItem> quantized_items(const io::StoredTensor& tensor, const std::string& module,
                                      const PackOptions& options) {
  const int bits = bits_of(module, options.bits);
  if (bits == 0 || tensor.shape.size() != 2) return {};
  const bool pairs = tensor.dtype == DType::kI8 || tensor.dtype == DType::kU8;
  const int64_t out = tensor.shape[0], in = tensor.shape[1] * (pairs ? 2 : 1);
  const int64_t num_slices = ends_with(module, ".attn.wo_a") ? options.o_groups : 1;
  if (out % num_slices != 0) return {};
  const int64_t slice = out / num_slices;
  if (slice % exl3::kGroupDim != 0 || in % exl3::kGroupDim != 0) return {};
  if (num_slices == 1)
    return {matrix_item(module, module, bits, out, 0, out, in, options.codebook)};
  std::vector<PackItem> items;
  for (int64_t s = 0; s < num_slices; ++s)
    items.push_back(matrix_item(module + ".slice." + std::to_string(s), module, bits, out,
                                s * slice, slice, in, options.codebook));
  return items;
}

}  // namespace

int bits_of(std::string_view module, const PackBits& bits) {
  constexpr std::array<std::string_view, 9> kAttention{
      ".attn.wq_a",       ".attn.wq_b",         ".attn.wkv",
      ".attn.wo_a",       ".attn.wo_b",         ".attn.compressor.wkv",
      ".attn.indexer.wk", ".attn.indexer.wq_b", ".attn.compressor.wgate"};
  int own = 0;
  const bool ffn_matrix =
      ends_with(module, ".w1") || ends_with(module, ".w2") || ends_with(module, ".w3");
  if (module == "head") own = bits.head;
  if (ffn_matrix && module.find(".ffn.experts.") != std::string_view::npos) own = bits.experts;
  if (ffn_matrix && module.find(".ffn.shared_experts.") != std::string_view::npos)
    own = bits.shared;
  if (ends_with(module, ".engram.wkv")) own = bits.engram;
  if (ends_with(module, ".main_proj")) own = bits.draft;
  for (const std::string_view name : kAttention)
    if (ends_with(module, name)) own = bits.attention;
  return own != 0 && starts_with(module, "mtp.") ? bits.draft : own;
}

std::vector<PackItem> plan_pack(const io::Checkpoint& source, const PackOptions& options) {
  std::vector<PackItem> items;
  std::unordered_set<std::string> planned;  // names of source tensors that an item covers
  const auto plan = [&](const io::StoredTensor& tensor) {
    const std::string name(tensor.name);
    if (!planned.insert(name).second) return;
    if (ends_with(name, ".weight")) {
      const std::string module = name.substr(0, name.size() - 7);
      std::vector<PackItem> quantized = quantized_items(tensor, module, options);
      if (!quantized.empty()) {
        planned.insert(module + ".scale");
        for (PackItem& item : quantized) items.push_back(std::move(item));
        return;
      }
    }
    items.push_back(copy_of(tensor, options));
  };
  for (const io::StoredTensor& tensor : source.tensors()) {
    const std::string_view module = tensor.name.substr(0, tensor.name.rfind('.'));
    // The matrices of an expert lie side by side: one read brings them all.
    if (const std::string_view expert = expert_prefix(module); !expert.empty())
      for (const char* matrix : {"w1", "w2", "w3"})
        if (const io::StoredTensor* weight = source.find(std::string(expert) + matrix + ".weight"))
          plan(*weight);
    // A scale belongs to the weight that it may come before.
    if (ends_with(tensor.name, ".scale"))
      if (const io::StoredTensor* weight = source.find(std::string(module) + ".weight"))
        plan(*weight);
    plan(tensor);
  }
  return items;
}

}  // namespace onecard::quantize
