"""Weights, tokens and configurations that a name and a few numbers determine; and a writer of safetensors.

The value of element i of a tensor is a hash of the tensor's name and i (spelled out in docs/model.md), so that a test
can make the same checkpoint without any file.
"""
import json
import math
import os
import struct

import numpy as np

M64 = 0xFFFFFFFFFFFFFFFF


def fnv1a(text):
    h = 0xCBF29CE484222325
    for b in text.encode():
        h = ((h ^ b) * 0x100000001B3) & M64
    return h


def uniform(name, count):
    """[-1, 1)"""
    with np.errstate(over="ignore"):
        z = np.uint64(fnv1a(name)) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z ^= z >> np.uint64(30)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return 2 * ((z >> np.uint64(40)).astype(np.float64) / 2**24) - 1


def amplitude(name, shape):
    """(A, B): values are A * uniform + B."""
    last = name.removesuffix(".weight").rsplit(".", 1)[-1]
    if last.endswith("norm"):
        return 0.1, 1
    if name in ("embed.weight",) or name.endswith(("engram.embed.weight", "attn_sink")):
        return 1, 0
    if last.startswith("hc_"):
        return {"fn": (0.05, 0), "base": (0.5, 0), "scale": (0.2, 1)}[last.rsplit("_", 1)[-1]]
    if name.endswith((".gate.bias", ".gate.bias_vl")):
        return 0.05, 0
    if last in ("q_weight", "k_weight"):
        return 0.2, 1
    return math.sqrt(3 / shape[-1]), 0


def tensor_shapes(c):
    """Official name -> shape of every tensor of the text model."""
    d, hd, ih, i = c["hidden_size"], c["head_dim"], c["index_head_dim"], c["moe_intermediate_size"]
    heads = c["num_attention_heads"] * hd
    h = c["hc_mult"]
    s = {"embed.weight": (c["vocab_size"], d), "head.weight": (c["vocab_size"], d), "norm.weight": (d,)}
    columns = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"]
    for l in range(c["num_hidden_layers"]):
        p = f"layers.{l}."
        for site in ("attn", "ffn"):
            s[p + site + "_norm.weight"] = (d,)
            s[p + f"hc_{site}_fn"] = ((2 + h) * h, h * d)
            s[p + f"hc_{site}_base"] = ((2 + h) * h,)
            s[p + f"hc_{site}_scale"] = (3,)
        a = p + "attn."
        s[a + "attn_sink"] = (c["num_attention_heads"],)
        s[a + "wq_a.weight"] = (c["q_lora_rank"], d)
        s[a + "q_norm.weight"] = (c["q_lora_rank"],)
        s[a + "wq_b.weight"] = (heads, c["q_lora_rank"])
        s[a + "wkv.weight"] = (hd, d)
        s[a + "kv_norm.weight"] = (hd,)
        s[a + "wo_a.weight"] = (c["o_groups"] * c["o_lora_rank"], heads // c["o_groups"])
        s[a + "wo_b.weight"] = (d, c["o_groups"] * c["o_lora_rank"])
        if l in c["kv_source_layer_ids"]:
            s[a + "compressor.wkv.weight"] = (hd, d)
            if c["compress_ratios"][l] > 1:
                s[a + "compressor.wgate.weight"] = (hd, d)
            s[a + "compressor.norm.weight"] = (hd,)
            s[a + "indexer.wk.weight"] = (ih, hd)
            s[a + "indexer.k_norm.weight"] = (ih,)
        if l in c["index_source_layer_ids"]:
            s[a + "indexer.wq_b.weight"] = (c["index_n_heads"] * ih, c["q_lora_rank"])
            s[a + "indexer.weights_proj.weight"] = (c["index_n_heads"], d)
        s[p + "ffn.gate.weight"] = (c["n_routed_experts"], d)
        s[p + "ffn.gate.bias"] = (c["n_routed_experts"],)
        for e in [f"experts.{e}" for e in range(c["n_routed_experts"])] + ["shared_experts"]:
            s[p + f"ffn.{e}.w1.weight"] = (i, d)
            s[p + f"ffn.{e}.w3.weight"] = (i, d)
            s[p + f"ffn.{e}.w2.weight"] = (d, i)
        if l in c["engram_layer_ids"]:
            rows = c["engram_num_embeddings"][c["engram_layer_ids"].index(l)]
            s[p + "engram.embed.weight"] = (rows, c["engram_head_dim"])
            s[p + "engram.wkv.weight"] = ((h + 1) * d, columns * c["engram_head_dim"])
            s[p + "engram.q_weight"] = (h, d)
            s[p + "engram.k_weight"] = (h, d)
    return s


def tensor(shapes, name):
    shape = shapes[name]
    a, b = amplitude(name, shape)
    return (uniform(name, int(np.prod(shape))) * a + b).astype(np.float32).reshape(shape)


def token_map(c):
    return [7 * i % c["engram_compressed_vocab_size"] for i in range(c["vocab_size"])]


def write_checkpoint(directory, c):
    """config.json, model.safetensors (F32) and engram_token_map.i32."""
    os.makedirs(directory, exist_ok=True)
    shapes, header, offset = tensor_shapes(c), {}, 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(directory, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in shapes:
            f.write(tensor(shapes, name).tobytes())
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as f:
        json.dump({"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "text_config": c}, f)
    np.array(token_map(c), "<i4").tofile(os.path.join(directory, "engram_token_map.i32"))
