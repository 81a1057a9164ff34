// Weights by name, in whatever format stored_linear.h finds them. Owns what cannot stay where it
// is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "experts/expert_weights.h"
#include "io/checkpoint.h"
#include "model/stored_linear.h"
#include "ops/linear.h"
#include "tensor/buffer.h"
#include "tensor/view.h"

namespace onecard::model {

/// Weights made by a WeightLoader, where the ops of `backend` read them.
class WeightMemory {
 public:
  explicit WeightMemory(Backend backend = Backend::kCpu) : backend_(backend) {}

  Backend backend() const { return backend_; }
  int64_t owned_bytes() const { return owned_bytes_; }

  /// Host memory for the loader to fill, and then to keep().
  std::byte* allocate(int64_t bytes);
  /// What was allocated last has been filled: returns where it stays from now on.
  std::byte* keep();

 private:
  static constexpr int64_t kDeviceBlockBytes = int64_t{32} << 20;

  Backend backend_;
  std::vector<Buffer<std::byte>> blocks_;  // CPU: one a weight; CUDA: filled front to back
  int64_t used_bytes_ = 0;                 // of the last block
  Buffer<std::byte> filling_;              // CUDA: on the host
  int64_t owned_bytes_ = 0;
};

class WeightLoader {
 public:
  /// Both outlive what is loaded.
  WeightLoader(const io::Checkpoint& checkpoint, WeightMemory& memory)
      : checkpoint_(checkpoint), memory_(memory) {}

  /// The module `name` as W[out, in]. Throws what find_linear throws, and kDataCorrupt when there
  /// is none.
  ops::LinearWeight linear(const std::string& name, int64_t out_features, int64_t in_features);

  /// A block-diagonal module: num_groups matrices [out, in], one behind the other in `name`, or
  /// each a module of its own, `name`.slice.N.
  std::vector<ops::LinearWeight> grouped_linear(const std::string& name, int64_t num_groups,
                                                int64_t out_features, int64_t in_features);

  /// A plain tensor as f32 [rows, cols]; its leading dimensions are taken together.
  View<const float> matrix(const std::string& name, int64_t rows, int64_t cols);
  std::span<const float> vector(const std::string& name, int64_t size);
  /// The same values on the host, and values of the host where ops read them.
  std::vector<float> host_values(const std::string& name, int64_t rows, int64_t cols) const;
  std::span<const float> keep(std::span<const float> values);

  /// One expert: w1, w3, w2 under `name`. EXL3 goes into one record in the unit layout.
  experts::ExpertMatrices expert(const std::string& name, int64_t hidden, int64_t intermediate);

 private:
  [[noreturn]] void missing(const std::string& name, int64_t out_features,
                            int64_t in_features) const;
  StoredLinear stored(const std::string& name, int64_t out_features, int64_t in_features) const;
  ops::LinearWeight load(const StoredLinear& stored, bool keep_mapped);
  template <typename T>
  std::span<const T> keep_copy(std::span<const T> values);
  const std::byte* bytes_of(const io::StoredTensor& tensor, bool keep_mapped);

  const io::Checkpoint& checkpoint_;
  WeightMemory& memory_;
};

}  // namespace onecard::model
