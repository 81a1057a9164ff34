#!/usr/bin/env python3
"""Golden logits of the demo model, from model_reference.py on its decoded weights: tests/golden/model/demo.json.

    tools/oracle/demo_goldens.py --source CHECKPOINT     CHECKPOINT: the BF16 checkpoint that models/demo was quantised from

Needs numpy, and regex for the tokeniser. Of every recorded row: the largest logits with their ids, log(sum(exp)), and every
128th logit.
"""
import argparse
import hashlib
import json
import os
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
sys.path.append(os.path.join(ROOT, "tools/demo_model"))

import checkpoint  # noqa: E402
import model_reference  # noqa: E402
import tokenizer  # noqa: E402

NUM_TOP, STRIDE, NUM_DECODE = 32, 128, 4
# name: (first line of calibration.jsonl, prompt tokens, recorded positions)
PROMPTS = {
    "short": (2, 40, (0, 1, 9, 24, 39)),
    # Longer than the window (128), what is selected (512 groups) and the candidates (256 blocks of 8).
    "long": (8, 2176, (130, 600, 1100, 2100, 2175)),
}


def prompt(name):
    first, length, positions = PROMPTS[name]
    with open(os.path.join(ROOT, "tools/demo_model/calibration.jsonl"), encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    tok, ids = tokenizer.Tokenizer(os.path.join(ROOT, "models/demo/tokenizer.json")), []
    while len(ids) < length + NUM_DECODE:
        ids += tok.encode(lines[first])
        first += 1
    return ids[:length], ids[length : length + NUM_DECODE], positions


def record(row):
    top = np.argsort(-row, kind="stable")[:NUM_TOP]
    return {"top_ids": [int(i) for i in top], "top": [round(float(v), 5) for v in row[top]],
            "log_sum": round(float(np.log(np.exp(row - row.max()).sum()) + row.max()), 5),
            "every_128th": [round(float(v), 5) for v in row[::STRIDE]]}


def run(model, tokens, decode, positions, bounded):
    seq = model_reference.Sequence(model.c)
    full = model.forward(tokens, seq)
    out = {"full": [record(full[t]) for t in positions], "decode": [record(model.forward([t], seq)[0]) for t in decode]}
    if bounded:
        seq = model_reference.Sequence(model.c)
        out["bounded"] = [record(model.prefill(tokens, seq, "bounded"))]
        out["bounded"] += [record(model.forward([t], seq)[0]) for t in decode]
    return out


def digest(directory):
    sha = hashlib.sha256()
    for name in sorted(n for n in os.listdir(directory) if n.endswith(".safetensors")):
        with open(os.path.join(directory, name), "rb") as f:
            sha.update(f.read())
    return sha.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", required=True)
    args = parser.parse_args()
    directories = {"exl3": os.path.join(ROOT, "models/demo"), "bf16": args.source}
    golden = {"provenance": {"script": "tools/oracle/demo_goldens.py", "numpy": np.__version__, "arithmetic": "f64",
                             "shards_sha256": {k: digest(d) for k, d in directories.items()}}, "prompts": {}}
    for name in PROMPTS:
        tokens, decode, positions = prompt(name)
        golden["prompts"][name] = {"tokens": tokens, "decode_tokens": decode, "positions": positions}
    for kind, directory in directories.items():
        stored = checkpoint.Checkpoint(directory)
        model = model_reference.Model(stored.config, stored.tensor, stored.token_map)
        for name, case in golden["prompts"].items():
            long = len(case["tokens"]) > stored.config["sliding_window"]
            case[kind] = run(model, case["tokens"], case["decode_tokens"], case["positions"], long)
            print(f"{kind} {name}: done", file=sys.stderr)
    with open(os.path.join(ROOT, "tests/golden/model/demo.json"), "w", encoding="utf-8") as f:
        json.dump(golden, f)
        f.write("\n")


if __name__ == "__main__":
    main()
