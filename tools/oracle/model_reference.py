"""The forward of the model in numpy, written for reading: the oracle of tests/golden/model.

No part of the program is used. Arithmetic is f64 (or f32, with dtype=np.float32); the quantisers of KV rows and
index vectors always act on values rounded to f32, and rotation angles are f32 products, as the model defines them.
Weights come from a function name -> array, so that any source of checkpoint tensors will do.
"""
import math

import numpy as np

F32 = np.float32


# ------------------------------------------------------------------------------------------------ number formats
def pow2ceil(x):
    bits = x.astype(F32).view(np.int32)
    return np.ldexp(F32(1), (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0)).astype(F32)


def round_minifloat(x, mantissa_bits, min_exponent, largest):
    """To nearest even on a grid with subnormals; |x| beyond the largest value becomes it."""
    exponent = np.maximum(np.frexp(np.abs(x))[1] - 1, min_exponent)
    step = np.ldexp(F32(1), exponent - mantissa_bits)
    return np.copysign(np.minimum(np.rint(np.abs(x) / step) * step, F32(largest)), x).astype(F32)


def e4m3(x):
    return round_minifloat(x, 3, -6, 448)


def e2m1(x):
    return round_minifloat(x, 1, 0, 6)


def fake_quantise(x, block, scale_of, code, limit):
    """Blocks of the last axis; left out where they do not divide it."""
    if x.shape[-1] % block:
        return x
    z = x.astype(F32).reshape(*x.shape[:-1], -1, block)
    scale = scale_of(np.abs(z).max(-1, keepdims=True))
    return (code(np.clip(z / scale, -limit, limit)) * scale).reshape(x.shape).astype(x.dtype)


def fp8_block32(x):
    return fake_quantise(x, 32, lambda a: pow2ceil(np.maximum(a, F32(1e-4)) * F32(1 / 448)), e4m3, F32(448))


def fp4_block32(x):
    return fake_quantise(x, 32, lambda a: pow2ceil(np.maximum(a, F32(6 * 2.0**-126)) * F32(1 / 6)), e2m1, F32(6))


def fp4_block16(x):
    return fake_quantise(x, 16, lambda a: e4m3(np.maximum(a, F32(6 * 2.0**-9)) / F32(6)), e2m1, F32(6))


# ------------------------------------------------------------------------------------------------------ functions
def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def rope_frequencies(c, compressed):
    dim, theta = c["qk_rope_head_dim"], c["compress_rope_theta"] if compressed else c["rope_theta"]
    f = (F32(1) / (F32(theta) ** (np.arange(0, dim, 2, dtype=F32) / F32(dim)))).astype(F32)
    if not compressed:
        return f
    y = c["rope_scaling"]
    turns = lambda n: dim * math.log(y["original_max_position_embeddings"] / (n * 2 * math.pi)) / (2 * math.log(theta))
    low, high = max(math.floor(turns(y["beta_fast"])), 0), min(math.ceil(turns(y["beta_slow"])), dim - 1)
    ramp = np.clip((np.arange(dim // 2, dtype=F32) - F32(low)) / F32(max(high - low, 1e-3)), 0, 1).astype(F32)
    return (f / F32(y["factor"]) * ramp + f * (F32(1) - ramp)).astype(F32)


def rope(x, positions, frequencies, inverse=False):
    """x: [tokens, ..., dim]; the last 2 * len(frequencies) channels turn, in interleaved pairs."""
    angle = (positions.astype(F32)[:, None] * frequencies[None]).astype(F32).astype(x.dtype)
    cos, sin = np.cos(angle), np.sin(angle) * (-1 if inverse else 1)
    if x.ndim == 3:
        cos, sin = cos[:, None], sin[:, None]
    n = 2 * len(frequencies)
    y = x.copy()
    even, odd = x[..., -n::2], x[..., x.shape[-1] - n + 1 :: 2]
    y[..., -n::2] = even * cos - odd * sin
    y[..., x.shape[-1] - n + 1 :: 2] = even * sin + odd * cos
    return y


def highest(scores, k):
    """Positions of the k highest, equal ones by lower position first; never -inf."""
    order = np.argsort(-scores, kind="stable")[:k]
    return [int(i) for i in order if scores[i] > -np.inf]


# --------------------------------------------------------------------------------------------------- n-gram hashes
def engram_primes(c):
    """[layer][column]"""
    is_prime = lambda n: n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))
    n, out = c["engram_vocab_size"] - 1, []
    for _ in c["engram_layer_ids"]:
        row = []
        while len(row) < (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"]:
            n += 1
            if is_prime(n):
                row.append(n)
        out.append(row)
    return out


def engram_multipliers(c):
    bound = (2**63 - 1) // c["engram_compressed_vocab_size"] // 2
    draw = lambda l: np.random.default_rng(10007 * l).integers(0, bound, size=c["engram_max_ngram_size"], dtype=np.int64)
    return [[int(v) * 2 + 1 for v in draw(l)] for l in c["engram_layer_ids"]]


def engram_rows(c, compressed, pad):
    """Table rows [token][layer][column] of a whole sequence of compressed ids."""
    primes, multipliers, heads = engram_primes(c), engram_multipliers(c), c["engram_n_heads"]
    out = []
    for t in range(len(compressed)):
        layers = []
        for p, m in zip(primes, multipliers):
            value, row, offset = int(compressed[t]) * m[0], [], 0
            for k in range(1, c["engram_max_ngram_size"]):
                value ^= (int(compressed[t - k]) if t >= k else pad) * m[k]
                for prime in p[(k - 1) * heads : k * heads]:
                    row.append(value % prime + offset)
                    offset += prime
            layers.append(row)
        out.append(layers)
    return np.array(out)


# ----------------------------------------------------------------------------------------------------------- model
class Sequence:
    def __init__(self, c):
        self.ids = []
        self.window = {l: {} for l in range(c["num_hidden_layers"])}  # position -> row
        self.main = {l: [] for l in c["kv_source_layer_ids"]}
        self.index = {l: [] for l in c["kv_source_layer_ids"]}
        self.open = {l: [] for l in c["kv_source_layer_ids"]}  # (key, gate, position) of an unfinished group


class Model:
    def __init__(self, config, tensor, token_map, dtype=np.float64):
        self.c, self.dtype = config, dtype
        self.cache = {}
        self.tensor = tensor
        self.token_map = token_map
        self.f_main, self.f_compress = rope_frequencies(config, False), rope_frequencies(config, True)
        self.observe = lambda layer, name, value: None

    def w(self, name):
        if name not in self.cache:
            self.cache[name] = np.asarray(self.tensor(name)).astype(self.dtype)
        return self.cache[name]

    def linear(self, x, name):
        return x @ self.w(name + ".weight").T

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c["rms_norm_eps"]) * self.w(name + ".weight")

    # -- hyper-connections
    def site(self, x, name):
        c, h = self.c, self.c["hc_mult"]
        flat = x.reshape(len(x), -1)
        m = (flat @ self.w(name + "_fn").T) / np.sqrt((flat * flat).mean(-1, keepdims=True) + c["rms_norm_eps"])
        base, scale, eps = self.w(name + "_base"), self.w(name + "_scale"), c["hc_eps"]
        pre = sigmoid(m[:, :h] * scale[0] + base[:h]) + eps
        post = 2 * sigmoid(m[:, h : 2 * h] * scale[1] + base[h : 2 * h])
        comb = softmax((m[:, 2 * h :] * scale[2] + base[2 * h :]).reshape(-1, h, h), -1) + eps
        comb = comb / (comb.sum(1, keepdims=True) + eps)
        for _ in range(c["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(2, keepdims=True) + eps)
            comb = comb / (comb.sum(1, keepdims=True) + eps)
        return pre, post, comb

    @staticmethod
    def collapse(x, mix):
        return (mix[..., None] * x).sum(1)

    @staticmethod
    def expand(y, x, post, comb):
        return post[..., None] * y[:, None] + np.einsum("tjk,tjd->tkd", comb, x)

    # -- attention
    def append_global(self, l, u, positions, seq):
        c, p, r = self.c, f"layers.{l}.attn.", self.c["compress_ratios"][l]
        keys = self.linear(u, p + "compressor.wkv")
        gates = self.linear(u, p + "compressor.wgate") if r > 1 else keys
        todo = seq.open[l] + list(zip(keys, gates, positions))
        whole = len(todo) // r * r
        seq.open[l] = todo[whole:]
        if not whole:
            return
        k = np.array([t[0] for t in todo[:whole]]).reshape(-1, r, c["head_dim"])
        g = np.array([t[1] for t in todo[:whole]]).reshape(-1, r, c["head_dim"])
        first = np.array([t[2] for t in todo[:whole:r]])
        latent = self.norm((k * softmax(g, 1)).sum(1) if r > 1 else k[:, 0], p + "compressor.norm")
        index = self.norm(self.linear(latent, p + "indexer.wk"), p + "indexer.k_norm")
        seq.index[l] += list(fp4_block32(rope(index, first, self.f_compress)))
        seq.main[l] += list(fp4_block16(rope(latent, first, self.f_compress)))

    def select(self, l, u, q_latent, positions, seq, shared):
        c, p, r = self.c, f"layers.{l}.attn.indexer.", self.c["compress_ratios"][l]
        source = max(s for s in c["kv_source_layer_ids"] if s <= l)
        keys = np.array(seq.index[source]).reshape(-1, c["index_head_dim"])
        q = self.linear(q_latent, p + "wq_b").reshape(len(u), c["index_n_heads"], c["index_head_dim"])
        q = fp4_block32(rope(q, positions, self.f_compress))
        w = self.linear(u, p + "weights_proj") / math.sqrt(c["index_n_heads"] * c["index_head_dim"])
        size, lists, masks = c["candidate_block_size"], [], []
        for i, t in enumerate(positions):
            n = (int(t) + 1) // r
            s = (np.maximum(q[i] @ keys[:n].T, 0) * w[i][:, None]).sum(0)
            if l == c["candidate_source_layer_id"]:
                blocks = np.array([s[b : b + size].max() for b in range(0, n, size)])
                if n:
                    blocks[-1] = np.inf
                keep = np.zeros(len(blocks), bool)
                keep[highest(blocks, c["candidate_topk_blocks"])] = True
                masks.append(np.repeat(keep, size)[:n])
            elif shared.get("masks") is not None:
                s = np.where(shared["masks"][i], s, -np.inf)
            lists.append(sorted(highest(s, c["index_topk"])))
        shared["lists"] = lists
        if l == c["candidate_source_layer_id"]:
            shared["masks"] = masks

    def attention(self, l, u, positions, seq, shared, num_queries, window_begin, globals_done):
        c, p, r = self.c, f"layers.{l}.attn.", self.c["compress_ratios"][l]
        f = self.f_compress if r else self.f_main
        rows = fp8_block32(rope(self.norm(self.linear(u, p + "wkv"), p + "kv_norm"), positions, f))
        seq.window[l].update(zip(map(int, positions), rows))
        if l in c["kv_source_layer_ids"] and not globals_done:
            self.append_global(l, u, positions, seq)
        u, positions = u[-num_queries:], positions[-num_queries:]
        q_latent = self.norm(self.linear(u, p + "wq_a"), p + "q_norm")
        q = self.linear(q_latent, p + "wq_b").reshape(len(u), c["num_attention_heads"], c["head_dim"])
        q = rope(q, positions, f)
        if l in c["index_source_layer_ids"]:
            self.select(l, u, q_latent, positions, seq, shared)
            self.observe(l, "selected", shared["lists"])
        source = max(s for s in c["kv_source_layer_ids"] if s <= l) if r else None
        sink = self.w(p + "attn_sink")[:, None]
        out = np.zeros_like(q)
        begin = max(window_begin, int(positions[0]) - c["sliding_window"] + 1, 0)
        window = np.array([seq.window[l][t] for t in range(begin, int(positions[-1]) + 1)])
        main = np.array(seq.main[source]).reshape(-1, c["head_dim"]) if r else None
        for i, t in enumerate(map(int, positions)):
            k = window[max(begin, t - c["sliding_window"] + 1) - begin : t + 1 - begin]
            if r:
                k = np.concatenate((k, main[shared["lists"][i]])) if shared["lists"][i] else k
            a = (q[i] @ k.T) / math.sqrt(c["head_dim"])
            m = np.maximum(a.max(-1, keepdims=True), sink)
            e = np.exp(a - m)
            out[i] = (e / (e.sum(-1, keepdims=True) + np.exp(sink - m))) @ k
        out = rope(out, positions, f, inverse=True).reshape(len(u), c["o_groups"], -1)
        wo_a = self.w(p + "wo_a.weight").reshape(c["o_groups"], c["o_lora_rank"], -1)
        return self.linear(np.einsum("tgd,grd->tgr", out, wo_a).reshape(len(u), -1), p + "wo_b")

    # -- experts
    def expert(self, name, x, weight=1.0):
        limit = self.c["swiglu_limit"]
        gate = np.minimum(self.linear(x, name + ".w1"), limit)
        up = np.clip(self.linear(x, name + ".w3"), -limit, limit)
        return self.linear(weight * gate * sigmoid(gate) * up, name + ".w2")

    def moe(self, l, x):
        c, p = self.c, f"layers.{l}.ffn."
        logits = self.linear(x, p + "gate")
        score = np.sqrt(np.where(logits > 20, logits, np.log1p(np.exp(np.minimum(logits, 20)))))
        y = self.expert(p + "shared_experts", x)
        k = c["num_experts_per_tok"]
        for i in range(len(x)):
            chosen = np.argsort(-(score[i] + self.w(p + "gate.bias")), kind="stable")[:k]
            weight = score[i][chosen] * c["routed_scaling_factor"]
            if k > 1 and c["norm_topk_prob"]:
                weight = weight / (score[i][chosen].sum() + 1e-20)
            for e, w in zip(chosen, weight):
                y[i] += self.expert(p + f"experts.{e}", x[i], w)
        return y

    # -- n-gram memory
    def engram(self, l, x, rows):
        c, p, h = self.c, f"layers.{l}.engram.", self.c["hc_mult"]
        r = self.w(p + "embed.weight")[rows].reshape(len(x), -1)
        kv = self.linear(r, p + "wkv")
        key, val = kv[:, : h * c["hidden_size"]].reshape(x.shape), kv[:, h * c["hidden_size"] :]
        root = lambda z: np.sqrt((z * z).mean(-1) + c["rms_norm_eps"])
        d = (x * self.w(p + "q_weight") * self.w(p + "k_weight") * key).sum(-1)
        d = d / root(x) / root(key) / math.sqrt(c["hidden_size"])
        gate = sigmoid(np.copysign(np.sqrt(np.maximum(np.abs(d), 1e-6)), d))
        return x + gate[..., None] * val[:, None]

    # -- the forward
    def layer(self, l, x, mix, positions, seq, shared, rows, num_queries=None, window_begin=0, globals_done=False):
        n, p = num_queries or len(x), f"layers.{l}."
        if l in self.c["engram_layer_ids"] and rows is not None:
            x = self.engram(l, x, rows[:, self.c["engram_layer_ids"].index(l)])
        u = self.norm(self.collapse(x, mix), p + "attn_norm")
        y = self.attention(l, u, positions, seq, shared, n, window_begin, globals_done)
        x = x[-n:]
        pre_attn, post, comb = self.site(x, p + "hc_attn")
        x = self.expand(y, x, post, comb)
        pre_ffn, post, comb = self.site(x, p + "hc_ffn")
        u = self.norm(self.collapse(x, pre_attn), p + "ffn_norm")
        x = self.expand(self.moe(l, u), x, post, comb)
        self.observe(l, "layer_out", x)
        self.observe(l, "mix", pre_ffn)
        return x, pre_ffn

    def start(self, ids, seq):
        c, begin = self.c, len(seq.ids)
        seq.ids += [int(i) for i in ids]
        positions = np.arange(begin, len(seq.ids))
        rows = None
        if c["engram_layer_ids"]:
            compressed = [self.token_map[i] for i in seq.ids]
            rows = engram_rows(c, compressed, self.token_map[c["engram_pad_token_id"]])[begin:]
        x = np.repeat(self.w("embed.weight")[ids][:, None], c["hc_mult"], 1)
        mix = np.zeros((len(ids), c["hc_mult"]), self.dtype)
        mix[:, 0] = 1
        return x, mix, positions, rows

    def logits(self, x, mix):
        return self.linear(self.norm(self.collapse(x, mix), "norm"), "head")

    def forward(self, ids, seq):
        """All layers on all tokens: logits [tokens, vocabulary]."""
        x, mix, positions, rows = self.start(ids, seq)
        shared = {}
        for l in range(self.c["num_hidden_layers"]):
            x, mix = self.layer(l, x, mix, positions, seq, shared, rows)
        return self.logits(x, mix)

    def prefill(self, ids, seq, mode):
        """`exact` or `bounded`, of a whole prompt: logits of its last token."""
        c = self.c
        x, mix, positions, rows = self.start(ids, seq)
        shared, begin, end, window = {}, c["kv_source_layer_ids"][-1], c["num_hidden_layers"], c["sliding_window"]
        for l in range(begin):
            x, mix = self.layer(l, x, mix, positions, seq, shared, rows)
        u = self.norm(self.collapse(x, mix), f"layers.{begin}.attn_norm")
        self.append_global(begin, u, positions, seq)
        shared, window_begin = {}, 0
        if mode == "bounded":
            x, mix, positions = x[-window:], mix[-window:], positions[-window:]
            window_begin = positions[0]
        for l in range(begin, end):
            n = len(x)
            if mode == "exact":
                n = min(n, window + (end - 1 - l) * (window - 1))
            cut = lambda values, m: [] if values is None else values[-m:]
            x, mix, positions = x[-n:], mix[-n:], positions[-n:]
            queries = n if mode == "bounded" else min(n, window + (end - 2 - l) * (window - 1))
            if l + 1 == end:
                queries = 1
            for key in ("lists", "masks"):
                if key in shared:
                    shared[key] = cut(shared[key], queries)
            x, mix = self.layer(l, x, mix, positions, seq, shared, None, queries, window_begin, True)
            positions = positions[-queries:]
        return self.logits(x, mix)[-1]
