// Second moments of what flows into every matrix, collected while the unquantised model reads
// calibration text. The caller runs the forward (every layer on every token) with this as its
// observer; afterwards it answers for the matrices of a pack.
//
// All moments are held in memory, in f64: 8 n^2 bytes for every distinct input of n features, and
// the experts' inputs as rows. That suits models that fit a workstation; the full-size model would
// need a pass a layer.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "device/exec.h"
#include "io/checkpoint.h"
#include "model/config.h"
#include "model/observer.h"
#include "quantize/checkpoint_quantizer.h"

namespace onecard::quantize {

class Calibration final : public model::Observer, public Hessians {
 public:
  /// `exec` and `source` outlive this; `source` is the checkpoint that the model runs.
  Calibration(const Exec& exec, const io::Checkpoint& source, const model::ModelConfig& config);

  /// Rows with a value that is not finite are left out.
  void observe(int64_t layer_idx, std::string_view name, View<const float> values) override;

  /// The moments of the item's input; empty for a matrix whose input never came (draft layers).
  /// A routed expert's down projection gets those of its own hidden activation, with every token
  /// sent through the expert.
  std::vector<double> of(const PackItem& item) override;

  /// Columns of o_heads that one slice of wo_a reads, and the like: where the item's input lies.
  struct Input {
    int64_t layer_idx = -1;  // -1: not observed
    std::string name;
    int64_t column_begin = 0;
  };
  Input input_of(const PackItem& item) const;

 private:
  struct Moments {
    std::vector<double> sums;  // [size, size]
    int64_t size = 0;
  };
  void add(Moments& moments, View<const float> rows) const;
  std::vector<double> of_expert_hidden(const PackItem& item, const std::vector<float>& rows) const;

  const Exec& exec_;
  const io::Checkpoint& source_;
  const model::ModelConfig config_;
  std::map<std::pair<int64_t, std::string>, Moments> moments_;  // by layer and "name@column"
  std::map<int64_t, std::vector<float>> expert_rows_;           // by layer: ffn_in
};

}  // namespace onecard::quantize
