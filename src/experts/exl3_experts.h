// EXL3 experts on the CPU, straight from their packed tiles.
//
// An expert is intermediate / 128 units: unit u is band u of gate and up and block u of down's
// inputs, so that one thread can take a unit from x to a partial sum of the output without waiting
// for any other. A job has two barriers:
//   prepare   x * suh, Hadamard, quantise: split over all threads
//   multiply  whole units by ticket; what is left at the end in twelfths of a unit
//   add       each thread sums the units of its columns, Hadamard, * svh, into `out`
// Jobs with many rows an expert (prefill) run the same steps band by band instead.
//
// Every sum has one order, fixed by the shape alone: a row's result depends neither on the other
// rows, nor on the number of threads, nor on who took which ticket.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "device/exec.h"
#include "ops/exl3_kernels.h"
#include "quant/exl3/matrix.h"
#include "tensor/view.h"

namespace onecard::experts {

/// One expert and the rows that chose it. Any layout; units in one piece (exl3::ExpertLayout) are
/// the fast one.
struct Exl3ExpertRows {
  exl3::ExpertView expert;
  std::span<const int64_t> rows;   // of x and out, each at most once
  std::span<const float> weights;  // one a row
};

class Exl3Experts {
 public:
  struct Options {
    int64_t hidden_size = 0;        // both multiples of 128
    int64_t intermediate_size = 0;  //
    float swiglu_limit = 10;
    ops::Exl3Precision precision = ops::Exl3Precision::kInt16;
    int prefetch_bytes = 3072;  // ahead of the strip being multiplied; 0: leave it to the hardware
  };

  /// Throws kInvalidArgument for sizes that are no positive multiples of 128.
  explicit Exl3Experts(const Options& options);
  ~Exl3Experts();

  /// out[t,:] += w2( weight * silu(min(w1 x, limit)) * clamp(w3 x, +-limit) ) for every expert and
  /// row of `work`, experts in the order given. x, out: [tokens, hidden] f32, apart. Runs on all
  /// threads of exec.pool, which must be idle; one call at a time. Memory grows to the largest job
  /// and stays.
  void forward_add(const Exec& exec, View<const float> x, std::span<const Exl3ExpertRows> work,
                   View<float> out);

  const Options& options() const;
  void set_prefetch_bytes(int bytes);  // between calls, both
  void set_precision(ops::Exl3Precision precision);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace onecard::experts
