"""Training checkpoints: master weights in parts of at most 15 MB (bf16 matrices and tables, the rest f32) and a log."""

import json
import os

import torch

PART_BYTES = 15_000_000
HALF = ("matrix", "table", "engram", "small")      # kinds (model.param_shapes) that are stored as bf16


def save(masters, kinds, folder, info):
    """masters: name -> f32 tensor. Written beside the old files first, so that a cut never leaves a broken folder."""
    os.makedirs(folder, exist_ok=True)
    part, size, parts = {}, 0, []
    for n, t in masters.items():
        t = t.detach().cpu()
        t = (t.to(torch.bfloat16) if kinds[n] in HALF else t.float()).clone()
        if size + t.numel() * t.element_size() > PART_BYTES:
            parts.append(part)
            part, size = {}, 0
        part[n] = t
        size += t.numel() * t.element_size()
    parts.append(part)
    for k, p in enumerate(parts):
        torch.save(p, f"{folder}/part{k}.pt.new")
    for k in range(len(parts)):
        os.replace(f"{folder}/part{k}.pt.new", f"{folder}/part{k}.pt")
    with open(f"{folder}/info.json", "w") as f:
        json.dump(info, f)


def load(folder):
    """name -> f32 tensor."""
    out = {}
    for f in sorted(os.listdir(folder)):
        if f.startswith("part") and f.endswith(".pt"):
            out.update(torch.load(f"{folder}/{f}", map_location="cpu"))
    return {k: v.float() for k, v in out.items()}
