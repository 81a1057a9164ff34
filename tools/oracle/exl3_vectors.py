#!/usr/bin/env python3
"""Golden vectors for the EXL3 weight format (docs/formats.md), made without any of the program's code.

numpy is the only dependency.

    tools/oracle/exl3_vectors.py            write tests/golden/exl3/{vectors.bin,manifest.json}
    tools/oracle/exl3_vectors.py --check    recompute everything and compare with the files on disk

All arrays lie in vectors.bin, raw little-endian, each starting at a multiple of 64 bytes; manifest.json lists
name, dtype (the part after the dot), shape, offset, bytes, sha256 and meaning.
"""
import hashlib
import json
import os
import sys

import numpy as np

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/golden/exl3")
BOOKS = ("3inst", "mcg", "mul1")
M32 = np.uint64(0xFFFFFFFF)


# ---------------------------------------------------------------- codebooks

def codebook(name):
    """All 65536 state values as float16, with the one fp16 rounding the format defines."""
    s = np.arange(65536, dtype=np.uint64)
    if name == "mul1":
        p = (s * np.uint64(0x83DCD12D)) & M32
        total = sum((p >> np.uint64(8 * i)) & np.uint64(255) for i in range(4))
        k = np.array([0x1EEE], np.uint16).view(np.float16).astype(np.float64)[0]
        b = np.array([0xC931], np.uint16).view(np.float16).astype(np.float64)[0]
        return ((1024.0 + total.astype(np.float64)) * k + b).astype(np.float16)   # exact product, one rounding
    if name == "3inst":
        p = (s * np.uint64(89226354) + np.uint64(64248484)) & M32
    elif name == "mcg":
        p = (s * np.uint64(0xCBAC1FED)) & M32
    else:
        raise ValueError(name)
    p = (p & np.uint64(0x8FFF8FFF)) ^ np.uint64(0x3B603B60)
    lo = (p & np.uint64(0xFFFF)).astype(np.uint16).view(np.float16).astype(np.float64)
    hi = (p >> np.uint64(16)).astype(np.uint16).view(np.float16).astype(np.float64)
    return (lo + hi).astype(np.float16)


CB = {b: codebook(b) for b in BOOKS}


# ---------------------------------------------------------------- tile stream

def tile_bits(words16, K):
    """The 256*K stream bits of one tile, first bit first. words16: 16*K uint16 as stored."""
    w = np.asarray(words16, np.uint16).astype(np.uint32)
    assert w.size == 16 * K
    u32 = w[0::2] | (w[1::2] << np.uint32(16))
    sh = np.arange(31, -1, -1, dtype=np.uint32)
    return ((u32[:, None] >> sh[None, :]) & np.uint32(1)).astype(np.uint8).reshape(-1)


def tile_states(words16, K):
    """256 sixteen-bit states: the cyclic window that ends with the K bits of weight t."""
    bits = tile_bits(words16, K).astype(np.uint32)
    end = (np.arange(256) + 1) * K
    idx = (end[:, None] - 16 + np.arange(16)[None, :]) % (256 * K)
    return (bits[idx] << np.arange(15, -1, -1, dtype=np.uint32)[None, :]).sum(1).astype(np.uint16)


def pack_states(states, K):
    """Inverse of tile_states for a tail-biting path: keep the low K bits of each state."""
    v = np.asarray(states, np.uint32) & np.uint32((1 << K) - 1)
    bits = ((v[:, None] >> np.arange(K - 1, -1, -1, dtype=np.uint32)[None, :]) & np.uint32(1)).reshape(-1, 32)
    u32 = (bits.astype(np.uint64) << np.arange(31, -1, -1, dtype=np.uint64)[None, :]).sum(1).astype(np.uint32)
    out = np.empty(16 * K, np.uint16)
    out[0::2] = u32 & np.uint32(0xFFFF)
    out[1::2] = u32 >> np.uint32(16)
    return out


def stream_rc(t):
    """Stream position -> (row = k inside the tile, column = n inside the tile)."""
    lane, j = t >> 3, t & 7
    return 2 * (lane & 3) + (j & 1) + 8 * ((j >> 1) & 1), (lane >> 2) + 8 * (j >> 2)


RC = np.array([stream_rc(t) for t in range(256)])


def decode_tile(words16, K, book):
    out = np.zeros((16, 16), np.float16)
    out[RC[:, 0], RC[:, 1]] = CB[book][tile_states(words16, K)]
    return out


def inner_matrix(trellis, K, book):
    """trellis [k/16, n/16, 16K] uint16 -> W_inner [k, n] float16."""
    tk, tn, _ = trellis.shape
    w = np.zeros((tk * 16, tn * 16), np.float16)
    for a in range(tk):
        for b in range(tn):
            w[a * 16:a * 16 + 16, b * 16:b * 16 + 16] = decode_tile(trellis[a, b], K, book)
    return w


# ---------------------------------------------------------------- Hadamard and linear

def had128(x, axis=-1):
    """Blockwise natural-order (Sylvester) Hadamard of size 128 with 1/sqrt(128), float64."""
    x = np.moveaxis(np.asarray(x, np.float64), axis, -1)
    shape = x.shape
    assert shape[-1] % 128 == 0
    y = x.reshape(-1, 128).copy()
    h = 1
    while h < 128:
        z = y.reshape(-1, 128 // (2 * h), 2, h)
        y = np.concatenate([z[:, :, :1] + z[:, :, 1:], z[:, :, :1] - z[:, :, 1:]], axis=2).reshape(-1, 128)
        h *= 2
    y /= np.sqrt(128.0)
    return np.moveaxis(y.reshape(shape), -1, axis)


def full_matrix(w_inner, suh, svh):
    """W = diag(suh) . H . W_inner . H . diag(svh), float64, no intermediate rounding."""
    w = had128(had128(w_inner.astype(np.float64), 0), 1)
    return suh.astype(np.float64)[:, None] * w * svh.astype(np.float64)[None, :]


def input_side_fp16(x, suh):
    """The activation as the fp16 kernels see it: fp16(x*suh) -> H -> fp16."""
    a = (x.astype(np.float32) * suh.astype(np.float32)).astype(np.float16)
    return had128(a.astype(np.float64)).astype(np.float16)


def run_fp16(x, w_inner, suh, svh):
    """y with fp16 rounding of the transformed activation only; everything after that in float64."""
    xh = input_side_fp16(x, suh)
    y = had128(xh.astype(np.float64) @ w_inner.astype(np.float64))
    return xh, y * svh.astype(np.float64)[None, :]


# ---------------------------------------------------------------- tail-biting Viterbi

def viterbi(tile, K, book):
    """Two-pass tail-biting encode of 256 values in stream order. Returns 256 states."""
    val = CB[book].astype(np.float32)
    prev_n = 65536 >> K                      # states are split as (previous 16-K bits, new K bits)
    B = 1 << K
    low = np.arange(prev_n)
    # candidate q (the K bits that leave the window) for the node "low": state = q << (16-K) | low
    states = (np.arange(B)[:, None] << (16 - K)) | low[None, :]
    pred = states >> K
    dec = val[states]

    def forward(roll, start):
        cost, back = None, np.zeros((256, prev_n), np.int32)
        for i in range(256):
            e = (dec - np.float32(tile[(i + roll) & 255])) ** 2
            if i == 0:
                if start is not None:
                    e = np.where(pred == start, e, np.float32(np.inf))
            else:
                e = e + cost[pred]
            q = e.argmin(0)
            cost = e[q, low]
            back[i] = pred[q, low]
        return cost, back

    cost, back = forward(128, None)          # pass 1: find a good node at the seam
    node = int(cost.argmin())
    for i in range(255, 127, -1):            # walk back to just before stream position 0
        node = int(back[i][node])
    seam = node
    _, back = forward(0, seam)               # pass 2: closed path through that node
    out = np.zeros(256, np.int64)
    node = seam
    for i in range(255, -1, -1):
        p = int(back[i][node])
        out[i] = (p << K) | node
        node = p
    assert node == seam
    return (out & 0xFFFF).astype(np.uint16)


# ---------------------------------------------------------------- vectors

def random_linear(rng, k, n, K):
    tr = rng.integers(0, 65536, (k // 16, n // 16, 16 * K), dtype=np.uint16)
    su = (np.where(rng.random(k) < 0.5, -1.0, 1.0) * (0.02 + 0.02 * rng.random(k))).astype(np.float16)
    sv = (np.where(rng.random(n) < 0.5, -1.0, 1.0) * (0.6 + 0.8 * rng.random(n))).astype(np.float16)
    return tr, su, sv


def build():
    rng = np.random.default_rng(20260808)
    files, notes = {}, {}

    def put(name, arr, note):
        files[name] = np.ascontiguousarray(arr)
        notes[name] = note

    for b in BOOKS:
        put(f"codebook_{b}.f16", CB[b], f"{b}: value of every 16-bit state")

    for K in range(1, 9):
        w = rng.integers(0, 65536, (2, 16 * K), dtype=np.uint16)
        st = np.stack([tile_states(t, K) for t in w])
        assert all((pack_states(s, K) == t).all() for s, t in zip(st, w))
        put(f"tile_k{K}_words.u16", w, f"2 tiles of random stored 16-bit words, K={K}")
        put(f"tile_k{K}_states.u16", st, "their 256 states in stream order")
        for b in BOOKS:
            put(f"tile_k{K}_{b}.f16", np.stack([decode_tile(t, K, b) for t in w]), "decoded 16x16 tiles, row-major [k][n]")

    v = rng.standard_normal(128).astype(np.float32)
    put("had_in.f32", v, "a 128-vector")
    put("had_out.f64", had128(v), "its normalised Hadamard transform")

    def linear(name, k, n, K, book, m, full):
        tr, su, sv = random_linear(rng, k, n, K)
        wi = inner_matrix(tr, K, book)
        W = full_matrix(wi, su, sv)
        x = rng.standard_normal((m, k)).astype(np.float16)
        xh, y16 = run_fp16(x, wi, su, sv)
        put(f"{name}_trellis.u16", tr, f"[k/16][n/16][16K], k={k} n={n} K={K} {book}")
        put(f"{name}_suh.f16", su, "input scales")
        put(f"{name}_svh.f16", sv, "output scales")
        put(f"{name}_x.f16", x, "activations [m][k]")
        put(f"{name}_y.f64", x.astype(np.float64) @ W, "x @ W, no rounding anywhere")
        put(f"{name}_y16.f64", y16, "same, but the transformed activation rounded to fp16 as the fp16 kernels do")
        if full:
            put(f"{name}_w.f32", W.astype(np.float32), "W [k][n] rounded to float32 once")
            put(f"{name}_xh.f16", xh, "fp16 transformed activation (input side)")
        return dict(name=name, k=k, n=n, K=K, book=book, m=m, full=full)

    cases = [linear("lin_a", 256, 128, 3, "mul1", 4, True),
             linear("lin_b", 128, 384, 4, "mcg", 2, False),
             linear("lin_c", 384, 128, 4, "3inst", 2, False),
             linear("lin_d", 128, 256, 3, "mcg", 2, False),
             linear("lin_e", 256, 256, 3, "mul1", 2, False)]
    cases += [linear(f"lin_k{K}", 128, 128, K, "mul1", 1, False) for K in range(1, 9)]

    # a small routed expert layer: y = sum_e w_e * down_e( min(silu(gate),L) * clamp(up,-L,L) )
    H, I, E, T, top, L = 256, 128, 3, 4, 2, 10.0
    x = (2.0 * rng.standard_normal((T, H))).astype(np.float16)
    sel = np.stack([rng.permutation(E)[:top] for _ in range(T)]).astype(np.int32)
    wt = rng.random((T, top)).astype(np.float16)
    y = np.zeros((T, H))
    mats = {}
    for nm, k, n in (("gate", H, I), ("up", H, I), ("down", I, H)):
        t3 = [random_linear(rng, k, n, 3) for _ in range(E)]
        mats[nm] = [full_matrix(inner_matrix(t[0], 3, "mul1"), t[1], t[2]) for t in t3]
        for i, suf in enumerate(("trellis.u16", "suh.f16", "svh.f16")):
            put(f"moe_{nm}_{suf}", np.stack([t[i] for t in t3]), f"{E} experts, K=3 mul1, k={k} n={n}")
    for t in range(T):
        for j in range(top):
            e = int(sel[t, j])
            g = x[t].astype(np.float64) @ mats["gate"][e]
            u = x[t].astype(np.float64) @ mats["up"][e]
            a = np.minimum(g / (1.0 + np.exp(-g)), L) * np.clip(u, -L, L)
            y[t] += float(wt[t, j]) * (a @ mats["down"][e])
    put("moe_x.f16", x, "tokens [4][256]")
    put("moe_sel.i32", sel, "selected experts [4][2]")
    put("moe_wt.f16", wt, "routing weights [4][2]")
    put("moe_y.f64", y, "silu gate (clamped to <= 10) * up (clamped to +-10), down, weighted sum; no rounding")

    # encoder: 4 Gaussian tiles in row-major order; mse is what a correct two-pass encoder reaches
    q = rng.standard_normal((4, 256)).astype(np.float32)
    put("enc_tiles.f32", q, "4 row-major 16x16 tiles, N(0,1), to be encoded after multiplying with `scale`")
    order = RC[:, 0] * 16 + RC[:, 1]
    enc = []
    for K, book, scale in ((2, "mul1", 0.9), (3, "mul1", 0.94), (4, "mul1", 0.98), (3, "mcg", 1.16), (3, "3inst", 1.16)):
        se, packed = [], []
        for tile in q:
            st = viterbi((tile * np.float32(scale))[order], K, book)
            got = CB[book][st].astype(np.float64) / scale
            se.append(float(((got - tile[order]) ** 2).mean()))
            packed.append(pack_states(st, K))
            assert (tile_states(packed[-1], K) == st).all()
        put(f"enc_k{K}_{book}.u16", np.stack(packed), f"encoded tiles, scale {scale}")
        enc.append(dict(K=K, book=book, scale=scale, mse_per_tile=se, mse=float(np.mean(se))))

    # legacy packed signs: 16 signs per int16, bit i = element i, set bit = negative
    sg = rng.integers(0, 65536, 8, dtype=np.uint16)
    put("signs_packed.u16", sg, "legacy .su/.sv words")
    un = 1.0 - 2.0 * ((sg[:, None] >> np.arange(16, dtype=np.uint16)[None, :]) & 1)
    put("signs_unpacked.f16", un.reshape(-1).astype(np.float16), "the signs they stand for")
    return files, notes, cases, enc


def check(files, manifest, blob):
    """Every array byte for byte; f64 outputs to 1e-13, because BLAS libraries sum in different orders."""
    bad = []
    for entry in manifest["arrays"]:
        want = files.pop(entry["name"])
        got = np.frombuffer(blob, want.dtype, want.size, entry["offset"]).reshape(want.shape)
        same = np.abs(got - want).max() <= 1e-13 if want.dtype == np.float64 else got.tobytes() == want.tobytes()
        if not same:
            bad.append(entry["name"])
    bad += list(files)
    print("all arrays agree" if not bad else "DIFFERENT OR MISSING: " + ", ".join(bad))
    sys.exit(bool(bad))


def main():
    files, notes, cases, enc = build()
    man = dict(format="exl3 golden vectors v1", byteorder="little", data="vectors.bin", codebooks=list(BOOKS),
               linear_cases=cases,
               moe=dict(hidden=256, intermediate=128, experts=3, tokens=4, top_k=2, K=3, book="mul1", act_limit=10.0),
               encoder=enc, arrays=[])
    blob = bytearray()
    for n in sorted(files):
        raw = files[n].tobytes()
        blob += b"\0" * (-len(blob) % 64)
        man["arrays"].append(dict(name=n, dtype=n.rsplit(".", 1)[1], shape=list(files[n].shape), offset=len(blob),
                                  bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest(), note=notes[n]))
        blob += raw
    man["bytes"] = len(blob)
    man["sha256"] = hashlib.sha256(blob).hexdigest()
    text = json.dumps(man, indent=0)
    pb, pm = os.path.join(HERE, "vectors.bin"), os.path.join(HERE, "manifest.json")
    if "--check" in sys.argv:
        check(files, json.loads(open(pm).read()), open(pb, "rb").read())
        return
    with open(pb, "wb") as fh:
        fh.write(blob)
    with open(pm, "w") as fh:
        fh.write(text + "\n")
    print(f"wrote {len(files)} arrays, {len(blob)} bytes, sha256 {man['sha256']}")
    for e in enc:
        print(e["K"], e["book"], e["scale"], round(e["mse"], 6))


if __name__ == "__main__":
    main()
