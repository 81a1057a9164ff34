#include "quantize/calibration.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "ops/linear.h"
#include "ops/swiglu.h"
#include "quantize/source_matrix.h"
#include "tensor/buffer.h"

namespace onecard::quantize {
namespace {

constexpr int64_t kRowsPerProduct = 512;

// A slice of o_heads is an input of its own: wo_a is block-diagonal.
std::string key_of(std::string_view name, int64_t column_begin) {
  return std::string(name) + "@" + std::to_string(column_begin);
}

std::vector<float> finite_rows(View<const float> values) {
  std::vector<float> rows;
  for (int64_t t = 0; t < values.rows; ++t) {
    const std::span<const float> row = values.row_span(t);
    if (std::all_of(row.begin(), row.end(), [](float v) { return std::isfinite(v); }))
      rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

}  // namespace

Calibration::Calibration(const Exec& exec, const io::Checkpoint& source,
                         const model::ModelConfig& config)
    : exec_(exec), source_(source), config_(config) {}

// X^T X as a linear layer whose weight is X^T and whose rows are X^T.
void Calibration::add(Moments& moments, View<const float> rows) const {
  const int64_t n = rows.cols;
  moments.size = n;
  moments.sums.resize(size_t(n * n));
  for (int64_t begin = 0; begin < rows.rows; begin += kRowsPerProduct) {
    const View<const float> part =
        rows.rows_between(begin, std::min(rows.rows, begin + kRowsPerProduct));
    Buffer<float> transposed(n * part.rows);
    for (int64_t t = 0; t < part.rows; ++t)
      for (int64_t c = 0; c < n; ++c) transposed[c * part.rows + t] = part.row(t)[c];
    ops::LinearWeight weight;
    weight.in_features = part.rows;
    weight.out_features = n;
    weight.data = transposed.data();
    Buffer<float> product(n * n);
    ops::linear(exec_, std::as_const(transposed).view(n, part.rows), weight, product.view(n, n));
    for (int64_t i = 0; i < n * n; ++i) moments.sums[size_t(i)] += double(product[i]);
  }
}

void Calibration::observe(int64_t layer_idx, std::string_view name, View<const float> values) {
  constexpr std::array<std::string_view, 9> kInputs{"engram_rows", "attn_in",       "latent",
                                                    "q_latent",    "o_heads",       "o_latent",
                                                    "ffn_in",      "shared_hidden", "head_in"};
  if (std::find(kInputs.begin(), kInputs.end(), name) == kInputs.end()) return;
  const std::vector<float> rows = finite_rows(values);
  const View<const float> all(rows.data(), int64_t(rows.size()) / values.cols, values.cols);
  if (name == "ffn_in") {
    std::vector<float>& kept = expert_rows_[layer_idx];
    kept.insert(kept.end(), rows.begin(), rows.end());
  }
  const int64_t num_blocks = name == "o_heads" ? config_.o_groups : 1;
  const int64_t width = values.cols / num_blocks;
  for (int64_t b = 0; b < num_blocks; ++b)
    add(moments_[{layer_idx, key_of(name, b * width)}],
        all.cols_between(b * width, (b + 1) * width));
}

Calibration::Input Calibration::input_of(const PackItem& item) const {
  const auto ends = [&](std::string_view end) {
    return item.source.size() >= end.size() &&
           std::string_view(item.source).substr(item.source.size() - end.size()) == end;
  };
  if (item.source == "head") return {config_.num_hidden_layers, "head_in", 0};
  constexpr std::string_view kLayers = "layers.";
  if (item.source.compare(0, kLayers.size(), kLayers) != 0) return {};
  int64_t layer_idx = -1;
  std::from_chars(item.source.data() + kLayers.size(), item.source.data() + item.source.size(),
                  layer_idx);
  if (ends(".engram.wkv")) return {layer_idx, "engram_rows", 0};
  if (ends(".attn.indexer.wk")) return {layer_idx, "latent", 0};
  if (ends(".attn.wq_b") || ends(".attn.indexer.wq_b")) return {layer_idx, "q_latent", 0};
  if (ends(".attn.wo_b")) return {layer_idx, "o_latent", 0};
  if (ends(".attn.wo_a"))
    return {layer_idx, "o_heads", item.row_begin / item.out_features * item.in_features};
  if (ends(".attn.wq_a") || ends(".attn.wkv") || ends(".attn.compressor.wkv") ||
      ends(".attn.compressor.wgate"))
    return {layer_idx, "attn_in", 0};
  if (ends(".ffn.shared_experts.w2")) return {layer_idx, "shared_hidden", 0};
  if (ends(".w1") || ends(".w3")) return {layer_idx, "ffn_in", 0};
  if (ends(".w2")) return {layer_idx, "expert_hidden", 0};
  return {};
}

std::vector<double> Calibration::of_expert_hidden(const PackItem& item,
                                                  const std::vector<float>& rows) const {
  const int64_t hidden = config_.hidden_size, intermediate = item.in_features;
  const std::string expert = item.source.substr(0, item.source.rfind('.'));
  const View<const float> x(rows.data(), int64_t(rows.size()) / hidden, hidden);
  const auto project = [&](const char* matrix) {
    const Buffer<float> w =
        read_matrix(source_, expert + matrix, intermediate, 0, intermediate, hidden);
    ops::LinearWeight weight;
    weight.in_features = hidden;
    weight.out_features = intermediate;
    weight.data = w.data();
    Buffer<float> out(x.rows * intermediate);
    ops::linear(exec_, x, weight, out.view(x.rows, intermediate));
    return out;
  };
  Buffer<float> gate = project(".w1");
  const Buffer<float> up = project(".w3");
  const View<float> act = gate.view(x.rows, intermediate);
  ops::swiglu(exec_, act, up.view(x.rows, intermediate), {}, float(config_.swiglu_limit), act);
  Moments moments;
  add(moments, act);
  return moments.sums;
}

std::vector<double> Calibration::of(const PackItem& item) {
  const Input input = input_of(item);
  if (input.name == "expert_hidden") {
    const auto rows = expert_rows_.find(input.layer_idx);
    return rows == expert_rows_.end() ? std::vector<double>{}
                                      : of_expert_hidden(item, rows->second);
  }
  const auto found = moments_.find({input.layer_idx, key_of(input.name, input.column_begin)});
  if (found == moments_.end()) return {};
  if (found->second.size != item.in_features)
    throw Error(ErrorCode::kInvalidArgument,
                "calibration: " + item.name + " has " + std::to_string(item.in_features) +
                    " inputs, observed were " + std::to_string(found->second.size));
  return found->second.sums;
}

}  // namespace onecard::quantize
