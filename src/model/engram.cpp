#include "model/engram.h"

#include <algorithm>
#include <string>

#include "model/workspace.h"
#include "ops/engram_gate.h"

namespace onecard::model {

Engram::Engram(const ModelConfig& config, int64_t layer_idx, WeightLoader& loader)
    : layer_idx_(layer_idx),
      engram_idx_(config.engram_idx(layer_idx)),
      norm_eps_(float(config.rms_norm_eps)) {
  const std::string name = "layers." + std::to_string(layer_idx) + ".engram.";
  wkv_ = loader.linear(name + "wkv", (config.hc_mult + 1) * config.hidden_size,
                       config.engram_num_columns() * config.engram_head_dim);
  std::vector<float> qk = loader.host_values(name + "q_weight", config.hc_mult, config.hidden_size);
  const std::vector<float> k =
      loader.host_values(name + "k_weight", config.hc_mult, config.hidden_size);
  for (size_t i = 0; i < qk.size(); ++i) qk[i] *= k[i];
  qk_ = loader.keep(qk);
}

void Engram::forward_add(StepContext& ctx, View<float> x) const {
  Workspace::Buffers& buffers = ctx.buffers();
  buffers.engram_requests[size_t(engram_idx_)].wait();
  const View<float> rows = buffers.engram_rows[size_t(engram_idx_)].rows(ctx.exec, x.rows);
  ctx.observe(layer_idx_, "engram_rows", rows);
  for (int64_t begin = 0; begin < x.rows; begin += kBlockRows) {
    const int64_t end = std::min(begin + kBlockRows, x.rows);
    const View<float> key_val = buffers.engram_key_val.rows(end - begin);
    ops::linear(ctx.exec, rows.rows_between(begin, end), wkv_, key_val);
    ops::engram_gate_add(ctx.exec, key_val, qk_, norm_eps_, x.rows_between(begin, end));
  }
}

}  // namespace onecard::model
