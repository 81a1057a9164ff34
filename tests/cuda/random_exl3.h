// EXL3 matrices of random tiles in any layout, and on the device.
#pragma once

#include "cuda/device.h"
#include "quant/exl3/layout.h"
#include "support/random_exl3.h"
#include "tensor/buffer.h"

namespace onecard::test {

/// A random matrix in another layout, on the host.
struct LaidOutMatrix {
  LaidOutMatrix(int64_t in, int64_t out, int bits, exl3::Codebook codebook, exl3::Layout layout,
                uint32_t seed)
      : native(in, out, bits, codebook, seed),
        tiles(native.tiles.size()),
        view(exl3::reorder(native.view, layout, tiles.data(),
                           exl3::group_bytes(in, out, bits, layout))) {}
  RandomMatrix native;
  Buffer<std::byte> tiles;
  exl3::MatrixView view;
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
