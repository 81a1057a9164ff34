// EXL3 matrices of random tiles, and random activations for them.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "quant/exl3/layout.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace onecard::test {

inline std::vector<float> random_values(int64_t count, uint32_t seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

/// A matrix of random tiles as it lies in a checkpoint.
struct RandomMatrix {
  RandomMatrix(int64_t in, int64_t out, int bits, exl3::Codebook codebook, uint32_t seed)
      : tiles(in * out / 256 * exl3::tile_bytes(bits)), suh(size_t(in)), svh(size_t(out)) {
    std::mt19937 random(seed);
    for (std::byte& b : tiles.span()) b = std::byte(random());
    // Sizes that give outputs near 1 for inputs near 1.
    const auto scale = [&](float size) {
      return f32_to_f16((random() & 1 ? size : -size) * (0.7f + float(random() % 600) / 1000));
    };
    for (uint16_t& s : suh) s = scale(1 / std::sqrt(float(in)));
    for (uint16_t& s : svh) s = scale(1.5f);
    view.in_features = in;
    view.out_features = out;
    view.bits = bits;
    view.codebook = codebook;
    view.data = tiles.data();
    view.suh = suh;
    view.svh = svh;
  }
  Buffer<std::byte> tiles;
  std::vector<uint16_t> suh, svh;
  exl3::MatrixView view;
};

}  // namespace onecard::test
