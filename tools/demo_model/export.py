"""Checkpoint -> official tensor names in safetensors shards, config.json, tokenizer files; and the way back.

    python3 export.py --run RUN --tok tok --out MODEL

Linear weights, embeddings and norms bf16; mHC, sinks and gate biases fp32; Engram tables e4m3 with e8m0 scales per
32 channels (spec/model.md 8.1), exactly the values the model computes with. load() reads such a folder back.
"""
import argparse
import json
import os
import shutil
import struct

import numpy as np
import torch

import checkpoint
import model as M
import tokenizer as TK

SHARD_BYTES = 15 * 2 ** 20


def bf16_bytes(t):
    return (t.to(torch.bfloat16).contiguous().view(torch.int16)).numpy().tobytes()


def e4m3_encode(t):
    """fp32 values on the e4m3 grid -> bytes."""
    a = t.abs()
    e = torch.clamp((a.contiguous().view(torch.int32) >> 23 & 0xFF) - 127, min=-6)
    m = torch.round(a / torch.pow(2.0, (e - 3).float())).to(torch.int32)          # 0..15; below 8: subnormal
    code = torch.where(m < 8, m, ((e + 7) << 3) | (m - 8))
    return (code | torch.where(torch.signbit(t), 0x80, 0)).to(torch.uint8)


def e4m3_decode(b):
    b = b.to(torch.int32)
    e, m = b >> 3 & 15, (b & 7).float()
    v = torch.where(e == 0, m * 2.0 ** -9, (1 + m / 8) * torch.pow(2.0, e.float() - 7))
    return torch.where(b >= 128, -v, v)


def quantise_table(t):
    """[rows, d] -> e4m3 bytes [rows, d], e8m0 scale bytes [rows, d/32]; the same rule as fakequant_fp8_block32."""
    z = t.float().to(torch.bfloat16).float().reshape(t.shape[0], -1, 32)
    s = M.pow2ceil(torch.clamp(z.abs().amax(-1, keepdim=True), min=1e-4) * (1.0 / 448.0))
    q = M.round_minifloat(torch.clamp(z / s, -448.0, 448.0), 3, -6)
    return e4m3_encode(q).reshape(t.shape), ((s.squeeze(-1).contiguous().view(torch.int32) >> 23) & 0xFF).to(torch.uint8)


def tensors(params, c):
    """Yields (official name, dtype string, shape, bytes)."""
    for name, (shape, kind) in M.param_shapes(c).items():
        t = params[name].detach().float().cpu()
        if kind in ("hc_fn", "f32", "bias"):
            yield name, "F32", t.shape, t.contiguous().numpy().tobytes()
            if kind == "bias":                            # image tokens only; present in the official checkpoint
                yield name + "_vl", "F32", t.shape, bytes(4 * t.numel())
        elif kind == "engram":
            q, s = quantise_table(t)
            yield name, "F8_E4M3", q.shape, q.numpy().tobytes()
            yield name.replace(".weight", ".scale"), "F8_E8M0", s.shape, s.numpy().tobytes()
        elif ".ffn.w" in name:
            base, w = name.rsplit(".", 1)
            for e in range(t.shape[0]):
                who = f"experts.{e}" if e < c.n_routed_experts else "shared_experts"
                yield f"{base}.{who}.{w}.weight", "BF16", t[e].shape, bf16_bytes(t[e])
        else:
            if name.endswith(("wo_a.weight", "engram.wkv.weight")):
                t = t.reshape(-1, t.shape[-1])
            yield name, "BF16", t.shape, bf16_bytes(t)


def write_shards(items, out):
    """safetensors: 8-byte header length, JSON header, data."""
    shards, size = [[]], 0
    for it in items:
        if size + len(it[3]) > SHARD_BYTES and shards[-1]:
            shards.append([])
            size = 0
        shards[-1].append(it)
        size += len(it[3])
    index, total = {}, 0
    for i, shard in enumerate(shards):
        fname = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for name, dtype, shape, data in shard:
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
            index[name] = fname
            at += len(data)
        h = json.dumps(header).encode()
        h += b" " * (-len(h) % 8)
        with open(os.path.join(out, fname), "wb") as f:
            f.write(struct.pack("<Q", len(h)) + h)
            for *_, data in shard:
                f.write(data)
        total += at
    with open(os.path.join(out, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": index}, f, indent=1)
    return total, len(shards)


def read_shards(folder):
    out = {}
    for fname in sorted(f for f in os.listdir(folder) if f.endswith(".safetensors")):
        raw = open(os.path.join(folder, fname), "rb").read()
        n, = struct.unpack("<Q", raw[:8])
        for name, d in json.loads(raw[8:8 + n]).items():
            if name == "__metadata__":
                continue
            a, b = d["data_offsets"]
            buf = np.frombuffer(raw, np.uint8, b - a, 8 + n + a).copy()
            if d["dtype"] == "BF16":
                t = torch.from_numpy(buf.view(np.int16)).view(torch.bfloat16).float()
            elif d["dtype"] == "F32":
                t = torch.from_numpy(buf.view(np.float32))
            else:
                t = torch.from_numpy(buf)
            out[name] = t.reshape(d["shape"])
    return out


def load(folder):
    """Exported folder -> (config, fp32 parameters in model.py's layout, tokenizer)."""
    c = M.config_from_json(os.path.join(folder, "config.json"))
    raw, p = read_shards(folder), {}
    for name, (shape, kind) in M.param_shapes(c).items():
        if kind == "engram":
            v = e4m3_decode(raw[name]).reshape(shape[0], -1, 32)
            s = torch.pow(2.0, raw[name.replace(".weight", ".scale")].float() - 127).unsqueeze(-1)
            p[name] = (v * s).reshape(shape)
        elif ".ffn.w" in name:
            base, w = name.rsplit(".", 1)
            p[name] = torch.stack([raw[f"{base}.{'shared_experts' if e == c.n_routed_experts else f'experts.{e}'}.{w}.weight"]
                                   for e in range(c.n_routed_experts + 1)])
        else:
            p[name] = raw[name].reshape(shape)
    return c, p, TK.Tokenizer(os.path.join(folder, "tokenizer.json"))


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--run", required=True)
    a.add_argument("--tok", default="tok")
    a.add_argument("--out", required=True)
    args = a.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(args.tok, f), args.out)
    tok = TK.Tokenizer(os.path.join(args.out, "tokenizer.json"))
    cmap = tok.compressed_ids()
    c = M.Config(vocab_size=tok.size, engram_compressed_vocab_size=max(cmap) + 1)
    params = checkpoint.load(args.run)
    total, n = write_shards(list(tensors(params, c)), args.out)
    with open(os.path.join(args.out, "config.json"), "w") as f:
        json.dump(M.config_json(c, tok.added["<｜deepseek_image｜>"]), f, indent=1)
    c2, back, _ = load(args.out)
    worst = max(float((back[k] - params[k]).abs().max() / (params[k].abs().max() + 1e-9)) for k in params if "engram.embed" not in k)
    table = [k for k in params if "engram.embed" in k]
    exact = all(torch.equal(back[k], M.quant_fp8_block32(params[k].to(torch.bfloat16).float())) for k in table)
    print(f"{total / 2 ** 20:.1f} MiB in {n} shards; read back: worst relative difference {worst:.1e} (bf16 rounding of norms), tables exact {exact}, config equal {c2 == c}")


if __name__ == "__main__":
    main()
