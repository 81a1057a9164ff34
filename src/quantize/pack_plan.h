// What a pack holds: every tensor of the source, quantised or as it is, in the order in which it is
// written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "io/safetensors_writer.h"
#include "quant/exl3/matrix.h"

namespace onecard::quantize {

/// Bits a weight by kind of module; the defaults are those of the published 3-bit pack.
struct PackBits {
  int experts = 3;
  int shared = 5;     // shared experts
  int attention = 5;  // wq_a, wq_b, wkv, wo_a, wo_b, compressor, indexer
  int engram = 5;     // engram.wkv
  int head = 6;
  int draft = 4;  // every matrix under mtp.
};

struct PackOptions {
  PackBits bits;
  exl3::Codebook codebook = exl3::Codebook::kMul1;
  int64_t o_groups = 1;     // wo_a becomes as many slices, each a matrix of its own
  bool narrow_f32 = false;  // plain F32 matrices (hyper-connections) are written as F16
};

struct PackItem {
  enum class Kind {
    kCopy,      // one tensor, byte for byte
    kNarrow,    // one F32 tensor as F16
    kQuantize,  // rows [row_begin, row_begin + out_features) of the module `source`
  };
  Kind kind = Kind::kCopy;
  std::string name;    // of the tensor, or of the module that is written
  std::string source;  // the same in the source
  int bits = 0;
  int64_t source_rows = 0;  // of the whole module
  int64_t row_begin = 0;
  int64_t out_features = 0;
  int64_t in_features = 0;
  std::vector<io::TensorSpec> tensors;  // as written, in order

  int64_t num_weights() const { return out_features * in_features; }
};

/// A matrix that the format would take but whose dimensions are no multiples of 128 is copied.
/// Throws kDataCorrupt when a module's tensors do not fit together.
std::vector<PackItem> plan_pack(const io::Checkpoint& source, const PackOptions& options);

/// The bits of the matrix `module` (`layers.3.attn.wq_a`); 0 for what stays as it is.
int bits_of(std::string_view module, const PackBits& bits);

}  // namespace onecard::quantize
