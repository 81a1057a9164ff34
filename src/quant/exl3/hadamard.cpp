#include "quant/exl3/hadamard.h"

#include "base/error.h"

namespace onecard::exl3 {
namespace {

template <typename T>
void transform(std::span<T> data) {
  ONECARD_ASSERT(data.size() % kGroupDim == 0);
  for (size_t block = 0; block < data.size(); block += kGroupDim) {
    T* const v = data.data() + block;
    for (int h = 1; h < kGroupDim; h *= 2)
      for (int base = 0; base < kGroupDim; base += 2 * h)
        for (int i = base; i < base + h; ++i) {
          const T sum = v[i] + v[i + h];
          const T difference = v[i] - v[i + h];
          v[i] = sum;
          v[i + h] = difference;
        }
    for (int i = 0; i < kGroupDim; ++i) v[i] *= T(0.08838834764831845);  // 1/sqrt(128)
  }
}

}  // namespace

void hadamard(std::span<double> data) { transform(data); }
void hadamard(std::span<float> data) { transform(data); }

}  // namespace onecard::exl3
