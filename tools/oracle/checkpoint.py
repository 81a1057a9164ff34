"""Tensors of a checkpoint directory as numpy arrays: F32, BF16, F16, FP8 with 32x32 or 1x32 scales, FP4 with 1x32, EXL3."""
import glob
import json
import os
import struct

import numpy as np

import exl3_vectors

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e4m3_table():
    codes = np.arange(256)
    sign, exponent, mantissa = np.where(codes & 128, -1.0, 1.0), codes >> 3 & 15, codes & 7
    value = np.where(exponent, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    value[[127, 255]] = np.nan
    return (sign * value).astype(np.float32)


class Checkpoint:
    def __init__(self, directory):
        self.directory, self.where = directory, {}
        for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
            with open(path, "rb") as f:
                (size,) = struct.unpack("<Q", f.read(8))
                header = json.loads(f.read(size))
            for name, info in header.items():
                if name != "__metadata__":
                    begin, end = info["data_offsets"]
                    self.where[name] = path, info["dtype"], info["shape"], 8 + size + begin, end - begin
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as f:
            self.config = json.load(f)["text_config"]
        self.token_map = np.fromfile(os.path.join(directory, "engram_token_map.i32"), "<i4").tolist()

    def raw(self, name):
        path, dtype, shape, offset, size = self.where[name]
        data = np.fromfile(path, np.uint8, size, offset=offset)
        kinds = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I16": "<u2", "I32": "<i4"}
        return dtype, data.view(kinds.get(dtype, "u1")).reshape(shape)

    def tensor(self, name):
        """The tensor of this official name, dequantised."""
        module = name.removesuffix(".weight")
        if module + ".trellis" in self.where:
            return self.exl3(module)
        if module + ".slice.0.trellis" in self.where:
            slices = sum(n.startswith(module + ".slice.") and n.endswith(".trellis") for n in self.where)
            return np.concatenate([self.exl3(f"{module}.slice.{i}") for i in range(slices)])
        dtype, data = self.raw(name)
        if dtype == "BF16":
            return (data.astype(np.uint32) << 16).view(np.float32)
        if dtype in ("F32", "F16"):
            return data.astype(np.float32)
        _, scale = self.raw(name.removesuffix(".weight") + ".scale")
        scale = np.ldexp(np.float32(1), scale.astype(int) - 127)
        if dtype == "F8_E4M3":
            value = e4m3_table()[data]
            if scale.shape[0] != value.shape[0]:
                scale = np.repeat(scale, 32, 0)[: value.shape[0]]
            return value * np.repeat(scale, 32, 1)[:, : value.shape[1]]
        value = E2M1[np.stack((data & 15, data >> 4), -1).reshape(data.shape[0], -1)]
        return value * np.repeat(scale, 32, 1)

    def exl3(self, module):
        """W[out, in], f64."""
        _, trellis = self.raw(module + ".trellis")
        book = next((b for b in ("mul1", "mcg") if f"{module}.{b}" in self.where), "3inst")
        inner = exl3_vectors.inner_matrix(trellis, trellis.shape[2] // 16, book)
        scales = [self.raw(f"{module}.{side}")[1] for side in ("suh", "svh")]
        return exl3_vectors.full_matrix(inner, *scales).T
