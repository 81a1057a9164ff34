#!/usr/bin/env python3
"""Golden logits of small models, from model_reference.py: tests/golden/model/*.json.

    tools/oracle/model_goldens.py [NAME ...]      all cases, or some
    tools/oracle/model_goldens.py --write NAME DIRECTORY     the case's checkpoint

numpy is the only dependency. A case is kept only if f32 arithmetic gives the same logits to 2e-5: no decision
(rounding, selection, expert) may hang on the order of a sum.
"""
import argparse
import json
import os
import sys

import numpy as np

import deterministic_weights
import model_reference

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "../../tests/golden/model")

# The fields of the published tiny configuration; cases change some.
BASE = {
    "model_type": "deepseek_v41_text", "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 10,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 40, "qk_rope_head_dim": 10, "q_lora_rank": 32,
    "o_groups": 2, "o_lora_rank": 16, "rope_theta": 10000.0, "compress_rope_theta": 160000.0,
    "max_position_embeddings": 8192, "sliding_window": 8, "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1],
    "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 64},
    "kv_source_layer_ids": [2, 4, 6], "index_source_layer_ids": [2, 4, 6, 8], "candidate_source_layer_id": 6,
    "candidate_topk_blocks": 3, "candidate_block_size": 4, "index_n_heads": 8, "index_head_dim": 24, "index_topk": 6,
    "moe_intermediate_size": 32, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "scoring_func": "sqrtsoftplus", "norm_topk_prob": True, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
    "hidden_act": "silu", "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-20,
    "engram_layer_ids": [1, 4], "engram_vocab_size": 64, "engram_max_ngram_size": 4, "engram_n_heads": 2,
    "engram_head_dim": 32, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 50, "num_nextn_predict_layers": 0,
    "dspark_target_layer_ids": [], "tie_word_embeddings": False,
}

# name: (seed of the tokens, prompt tokens, changed fields)
CASES = {
    "odd_sizes": (1, 37, dict(hidden_size=52, num_attention_heads=3, head_dim=28, qk_rope_head_dim=6, o_groups=3,
                              o_lora_rank=7, q_lora_rank=19, sliding_window=5, index_n_heads=3, index_head_dim=14,
                              index_topk=5, moe_intermediate_size=21, engram_n_heads=1, engram_head_dim=11)),
    "three_engram_heads": (2, 30, dict(engram_n_heads=3, engram_max_ngram_size=3, engram_head_dim=12, sliding_window=1,
                                       n_routed_experts=5, num_experts_per_tok=3, routed_scaling_factor=0.75)),
    "window_two": (3, 41, dict(sliding_window=2, index_topk=3, candidate_topk_blocks=2, candidate_block_size=3,
                               engram_layer_ids=[], engram_num_embeddings=[])),
    "all_selected": (4, 29, dict(index_topk=64, candidate_topk_blocks=64, sliding_window=16, num_attention_heads=2)),
    "one_expert": (5, 33, dict(n_routed_experts=1, num_experts_per_tok=1, hc_mult=2, swiglu_limit=0.5)),
    "top_one": (6, 26, dict(n_routed_experts=6, num_experts_per_tok=1, hc_mult=3, hc_sinkhorn_iters=3)),
    "quantised": (7, 24, dict(head_dim=64, qk_rope_head_dim=16, index_head_dim=32, num_attention_heads=2,
                              index_n_heads=4, sliding_window=6)),
    "one_token": (8, 1, {}),
    "short": (9, 3, dict(sliding_window=4)),
    "four_thousand": (10, 4096, dict(hidden_size=24, num_hidden_layers=5, compress_ratios=[0, 2, 2, 1, 1],
                                     kv_source_layer_ids=[1, 3], index_source_layer_ids=[1, 3, 4],
                                     candidate_source_layer_id=3, candidate_topk_blocks=8, index_topk=8,
                                     num_attention_heads=2, head_dim=20, qk_rope_head_dim=6, o_lora_rank=8,
                                     index_n_heads=2, index_head_dim=12, n_routed_experts=2, sliding_window=64,
                                     moe_intermediate_size=16, engram_layer_ids=[1], vocab_size=40)),
}
NUM_DECODE = 4


def case_config(name):
    c = {**BASE, **CASES[name][2]}
    if c["engram_layer_ids"]:
        c["engram_num_embeddings"] = [sum(p) for p in model_reference.engram_primes(c)]
    return c


def run(c, ids, num_prompt, dtype):
    shapes = deterministic_weights.tensor_shapes(c)
    make = lambda: model_reference.Model(c, lambda n: deterministic_weights.tensor(shapes, n),
                                         deterministic_weights.token_map(c), dtype)
    model, out = make(), {}
    follow = lambda seq: [model.forward(ids[i : i + 1], seq)[0] for i in range(num_prompt, len(ids))]
    seq = model_reference.Sequence(c)
    out["full"] = model.forward(ids[:num_prompt], seq)
    out["decode"] = follow(seq)
    seq = model_reference.Sequence(c)
    out["bounded"] = model.prefill(ids[:num_prompt], seq, "bounded")
    out["bounded_decode"] = follow(seq)
    if num_prompt > 1000:  # slow
        return out
    seq = model_reference.Sequence(c)
    exact = model.prefill(ids[:num_prompt], seq, "exact")
    assert np.abs(exact - out["full"][-1]).max() < 1e-4, "EXACT differs from FULL in the oracle itself"
    return out


def golden(name):
    seed, num_prompt, _ = CASES[name]
    c = case_config(name)
    for attempt in range(100):
        rng = np.random.default_rng([seed, attempt])
        ids = rng.integers(0, c["vocab_size"], num_prompt + NUM_DECODE)
        want = run(c, ids, num_prompt, np.float64)
        check = run(c, ids, num_prompt, np.float32)
        gap = max(float(np.abs(np.asarray(want[k]) - np.asarray(check[k])).max()) for k in want)
        print(f"{name}: attempt {attempt}, f32 differs by {gap:.1e}", file=sys.stderr)
        if gap < (2e-5 if num_prompt <= 512 else 5e-5):
            break
    else:
        sys.exit(f"{name}: every attempt has a near-tie")
    positions = sorted({p for p in (0, 1, num_prompt // 3, num_prompt // 2, num_prompt - 2, num_prompt - 1) if 0 <= p < num_prompt})
    rows = lambda values: [[round(float(v), 6) for v in row] for row in values]
    return {
        "provenance": {"script": "tools/oracle/model_goldens.py " + name, "numpy": np.__version__, "arithmetic": "f64",
                       "tokens": f"numpy default_rng([{seed}, {attempt}])", "weights": "tools/oracle/deterministic_weights.py",
                       "f32 differs by": float(f"{gap:.1e}")},
        "config": c,
        "tokens": [int(i) for i in ids[:num_prompt]],
        "decode_tokens": [int(i) for i in ids[num_prompt:]],
        "positions": positions,
        "logits": rows(want["full"][positions]),
        "decode_logits": rows(want["decode"]),
        "bounded_logits": rows([want["bounded"]])[0],
        "bounded_decode_logits": rows(want["bounded_decode"]),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", nargs=2, metavar=("NAME", "DIRECTORY"))
    args = parser.parse_args()
    if args.write:
        return deterministic_weights.write_checkpoint(args.write[1], case_config(args.write[0]))
    os.makedirs(OUT, exist_ok=True)
    for name in args.names or CASES:
        with open(os.path.join(OUT, name + ".json"), "w", encoding="utf-8") as f:
            json.dump(golden(name), f)
            f.write("\n")


if __name__ == "__main__":
    main()
