// EXL3 matrices and experts of random tiles, on the host and on the device.
#pragma once

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "cuda/device.h"
#include "quant/exl3/layout.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace onecard::test {

inline std::vector<float> random_values(int64_t count, unsigned seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

/// Scales that give outputs near 1 for inputs near 1.
inline std::vector<uint16_t> random_scales(int64_t count, float size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint16_t> scales(static_cast<size_t>(count));
  for (uint16_t& scale : scales)
    scale = f32_to_f16((random() & 1 ? size : -size) * (0.7f + float(random() % 600) / 1000));
  return scales;
}

struct RandomMatrix {
  RandomMatrix(int64_t in, int64_t out, int bits, exl3::Codebook codebook, exl3::Layout layout,
               unsigned seed)
      : native_tiles(in * out / 256 * exl3::tile_bytes(bits)),
        tiles(native_tiles.size()),
        suh(random_scales(in, 1 / std::sqrt(float(in)), seed + 1)),
        svh(random_scales(out, 1, seed + 2)) {
    std::mt19937 random(seed);
    for (std::byte& b : native_tiles.span()) b = std::byte(random());
    native.in_features = in;
    native.out_features = out;
    native.bits = bits;
    native.codebook = codebook;
    native.data = native_tiles.data();
    native.suh = suh;
    native.svh = svh;
    host = exl3::reorder(native, layout, tiles.data(), exl3::group_bytes(in, out, bits, layout));
  }
  Buffer<std::byte> native_tiles, tiles;
  std::vector<uint16_t> suh, svh;
  exl3::MatrixView native, host;
};

/// A matrix that lies on the device.
struct DeviceMatrix {
  explicit DeviceMatrix(const exl3::MatrixView& host, int64_t bytes)
      : tiles(std::span<const std::byte>(host.data, size_t(bytes))),
        suh(host.suh),
        svh(host.svh),
        view(host) {
    view.data = tiles.data();
    view.suh = {suh.data(), host.suh.size()};
    view.svh = {svh.data(), host.svh.size()};
  }
  DeviceArray<std::byte> tiles;
  DeviceArray<uint16_t> suh, svh;
  exl3::MatrixView view;
};

}  // namespace onecard::test
