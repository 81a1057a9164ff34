// Every tensor that a checkpoint of this model must or may have, and the account of one that is
// there: each tensor is used, known and left alone (vision, draft layers), or an error.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "model/config.h"
#include "model/stored_linear.h"

namespace onecard::model {

enum class TensorGroup {
  kRoutedExperts,
  kEngramTables,
  kAttention,   // wq_a .. wo_b, their norms, sinks
  kEmbeddings,  // embed and head
  kSharedExperts,
  kVision,  // vision, aligner, image tokens: known, not used
  kDraft,   // mtp.*: known, not used
  kEngramProjections,
  kGates,
  kHyperConnections,
  kIndexer,
  kCompressor,
  kNorms,  // attention, feed-forward and final norms
};
constexpr int kNumTensorGroups = 13;
const char* tensor_group_name(TensorGroup group);  // "routed experts", ...

/// A tensor, or the tensors of one matrix in whatever format they are stored.
struct ModuleSpec {
  enum class Kind {
    kTensor,  // `name` itself, of F32, F16 or BF16 and this shape
    kLinear,  // find_linear(name, shape[0], shape[1])
    kTable,   // name.weight [shape] plain, or F8_E4M3 with name.scale, F8_E8M0 [rows, width/32]
  };
  Kind kind = Kind::kTensor;
  TensorGroup group = TensorGroup::kNorms;
  std::string name;
  std::vector<int64_t> shape;
  int64_t num_slices = 1;  // kLinear: may also be stored as name.slice.0 .., cut along its rows
  bool used = true;        // false: may be there, and is left alone
};

/// The modules of the text model, in the order of the layers.
std::vector<ModuleSpec> model_modules(const ModelConfig& config);

struct TensorTotals {
  int64_t num_tensors = 0;
  int64_t bytes = 0;
};

/// Matrices stored alike.
struct FormatTotals {
  WeightFormat format = WeightFormat::kPlain;
  std::string detail;  // "BF16"; "mul1, 3 bits"; empty where the format says all
  int64_t num_matrices = 0;
};

struct Account {
  std::array<TensorTotals, kNumTensorGroups> groups;  // of tensors that are known, by TensorGroup
  TensorTotals used;
  TensorTotals ignored;  // known and left alone
  TensorTotals unknown;
  TensorTotals total;
  std::vector<FormatTotals> formats;
  /// Missing, misshapen and unknown tensors: the first kMaxErrors of them, each naming file (or
  /// directory), tensor, expected and found.
  std::vector<std::string> errors;
  int64_t num_errors = 0;

  static constexpr size_t kMaxErrors = 20;
  bool ok() const { return num_errors == 0; }
};

/// Accounts for every tensor of the checkpoint. Never throws for what it finds: see errors.
Account account(const io::Checkpoint& checkpoint, const ModelConfig& config);

/// Throws kDataCorrupt with the errors of an account that has some.
void require_complete(const Account& account, const io::Checkpoint& checkpoint);

}  // namespace onecard::model
