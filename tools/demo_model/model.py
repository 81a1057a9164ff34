"""Trainable PyTorch implementation of the DeepSeek-V4.1-Flash text architecture (spec/model.md), any size.

Layout of the file: configuration, number formats (fake quantisers), small ops, parameters, the two "contexts"
(packed training batches / one cached sequence), and the layers. The model is a plain dictionary of tensors whose
names are the official checkpoint names, except that the experts of a layer are stacked:
    layers.L.ffn.w1, .w3  [E+1, I, D]      layers.L.ffn.w2  [E+1, D, I]       (index E is the shared expert)

Runs on torch 1.13 (CPU) and 2.x (CUDA). The hot leaf functions go through `fast()`, which train.py replaces by
torch.compile; everything else is ordinary eager code.
"""
import dataclasses
import json
import math

import numpy as np
import torch
import torch.nn.functional as F


# ------------------------------------------------------------------------------------------------ configuration
@dataclasses.dataclass
class Config:
    vocab_size: int = 5120
    hidden_size: int = 384
    num_hidden_layers: int = 10
    num_attention_heads: int = 4
    head_dim: int = 128
    qk_rope_head_dim: int = 32
    q_lora_rank: int = 128
    o_groups: int = 2
    o_lora_rank: int = 128
    sliding_window: int = 128
    compress_ratios: tuple = (0, 0, 2, 2, 2, 2, 1, 1, 1, 1)
    kv_source_layer_ids: tuple = (2, 4, 6)
    index_source_layer_ids: tuple = (2, 4, 6, 8)
    candidate_source_layer_id: int = 6
    candidate_topk_blocks: int = 512
    candidate_block_size: int = 8
    index_n_heads: int = 4
    index_head_dim: int = 64
    index_topk: int = 512
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 128
    routed_scaling_factor: float = 1.5
    swiglu_limit: float = 10.0
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    rms_norm_eps: float = 1e-20
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    yarn_factor: float = 16.0
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_original_max: int = 512
    max_position_embeddings: int = 8192
    engram_layer_ids: tuple = (1, 4)
    engram_vocab_size: int = 2000
    engram_max_ngram_size: int = 4
    engram_n_heads: int = 2
    engram_head_dim: int = 64
    engram_pad_token_id: int = 2
    engram_compressed_vocab_size: int = 0      # set from the tokenizer (tokenizer.compressed_ids)

    def ratio(self, l):
        return self.compress_ratios[l]

    def kv_source(self, l):
        return max(s for s in self.kv_source_layer_ids if s <= l)

    def engram_primes(self):
        """[layer][order-2][head]: ascending primes >= engram_vocab_size, never reused (spec 6.2)."""
        def is_prime(n):
            return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))
        out, n = [], self.engram_vocab_size - 1
        for _ in self.engram_layer_ids:
            layer = []
            for _ in range(self.engram_max_ngram_size - 1):
                row = []
                while len(row) < self.engram_n_heads:
                    n += 1
                    if is_prime(n):
                        row.append(n)
                layer.append(row)
            out.append(layer)
        return out

    def engram_rows(self):
        return [sum(map(sum, layer)) for layer in self.engram_primes()]

    def engram_multipliers(self):
        bound = max(1, ((2 ** 63 - 1) // self.engram_compressed_vocab_size) // 2)
        return [np.random.default_rng(10007 * l).integers(0, bound, size=self.engram_max_ngram_size, dtype=np.int64) * 2 + 1
                for l in self.engram_layer_ids]


# ------------------------------------------------------------------------------- number formats (spec 8.3), exact
def _exponent_bits(x):
    return (x.view(torch.int32) >> 23) & 0xFF


def _pow2(field):
    return (field << 23).view(torch.float32)


def pow2ceil(x):
    return _pow2(_exponent_bits(x) + ((x.view(torch.int32) & 0x7FFFFF) != 0).int())


def round_minifloat(x, mantissa_bits, min_exponent):
    """Round to nearest even on a float grid with `mantissa_bits` and smallest normal exponent `min_exponent`."""
    a = x.abs()
    e = torch.clamp(_exponent_bits(a), min=min_exponent + 127)
    step = _pow2(e - mantissa_bits)
    return torch.copysign(torch.round(a / step) * step, x)


def quant_fp8_block32(x):
    if x.shape[-1] % 32:
        return x
    z = x.float().reshape(*x.shape[:-1], x.shape[-1] // 32, 32)
    s = pow2ceil(torch.clamp(z.abs().amax(-1, keepdim=True), min=1e-4) * (1.0 / 448.0))
    return (round_minifloat(torch.clamp(z / s, -448.0, 448.0), 3, -6) * s).reshape(x.shape)


def quant_fp4_block32(x):
    if x.shape[-1] % 32:
        return x
    z = x.float().reshape(*x.shape[:-1], x.shape[-1] // 32, 32)
    s = pow2ceil(torch.clamp(z.abs().amax(-1, keepdim=True), min=6 * 2.0 ** -126) * (1.0 / 6.0))
    return (round_minifloat(torch.clamp(z / s, -6.0, 6.0), 1, 0) * s).reshape(x.shape)


def quant_fp4_block16(x):
    if x.shape[-1] % 16:
        return x
    z = x.float().reshape(*x.shape[:-1], x.shape[-1] // 16, 16)
    s = round_minifloat(torch.clamp(z.abs().amax(-1, keepdim=True), min=6 * 2.0 ** -9) / 6.0, 3, -6)
    return (round_minifloat(torch.clamp(z / s, -6.0, 6.0), 1, 0) * s).reshape(x.shape)


# ----------------------------------------------------------------------------------------------------- small ops
FAST = {}


def fast(f):
    """Marks a leaf function that train.py may replace by a compiled one: FAST[name] is what gets called."""
    FAST[f.__name__] = f

    def call(*args):
        return FAST[f.__name__](*args)
    call.__name__ = f.__name__
    return call


def rms(x, w):
    x = x.float()
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-20) * w


def rotate(x, cos, sin):
    """RoPE on the last 2*cos.shape[-1] channels, interleaved pairs; cos/sin broadcast against x[..., :n/2]."""
    n = 2 * cos.shape[-1]
    keep, r = x[..., :-n], x[..., -n:]
    e, o = r[..., 0::2], r[..., 1::2]
    turned = torch.stack((e * cos - o * sin, e * sin + o * cos), -1).flatten(-2)
    return torch.cat((keep, turned), -1)


def straight(x, q):
    return x + (q - x).detach() if torch.is_grad_enabled() and x.requires_grad else q


@fast
def norm_(x, w):
    return rms(x, w).to(x.dtype)


@fast
def window_row(x, w, cos, sin):
    y = rotate(rms(x, w), cos, sin)
    return straight(y, quant_fp8_block32(y)).to(x.dtype)


@fast
def latent_row(latent, cos, sin):
    y = rotate(latent.float(), cos, sin)
    return straight(y, quant_fp4_block16(y)).to(latent.dtype)


@fast
def index_key_row(x, w, cos, sin):
    y = rotate(rms(x, w), cos, sin)
    return straight(y, quant_fp4_block32(y)).to(x.dtype)


@fast
def index_query_row(x, cos, sin):
    y = rotate(x.float(), cos, sin)
    return straight(y, quant_fp4_block32(y)).to(x.dtype)


@fast
def rotate_(x, cos, sin):
    return rotate(x.float(), cos, sin).to(x.dtype)


@fast
def pool_pair(k, g, w):
    """[n, 2, d] keys and gates -> normalised latents [n, d]; per-channel softmax over the pair."""
    p = torch.sigmoid(g[:, 0].float() - g[:, 1].float())
    y = (p * k[:, 0].float() + (1 - p) * k[:, 1].float()).to(k.dtype)
    return rms(y, w).to(k.dtype)


@fast
def hc_gates(x, m, base, scale, eps):
    """x [N, H, D] streams, m [N, 24] = fn . flatten(x). Returns pre, post and the Sinkhorn logits L [N, H, H]."""
    H = x.shape[1]
    v = x.float()
    m = m.float() * torch.rsqrt((v * v).mean((1, 2)) + 1e-20).unsqueeze(-1)
    pre = torch.sigmoid(m[:, :H] * scale[0] + base[:H]) + eps
    post = 2 * torch.sigmoid(m[:, H:2 * H] * scale[1] + base[H:2 * H])
    logit = (m[:, 2 * H:] * scale[2] + base[2 * H:]).view(-1, H, H)
    return pre, post, logit


def sinkhorn(logit, iters, eps):
    c = torch.softmax(logit, -1) + eps
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


SINKHORN = sinkhorn            # kernels.install() puts fused kernels here and into SINK_SOFTMAX and SELECT


@fast
def collapse_norm(x, a, w):
    """rmsnorm(sum_j a[j] x[j])"""
    return rms((x.float() * a.unsqueeze(-1)).sum(1).to(x.dtype), w).to(x.dtype)


@fast
def hc_expand(y, x, post, comb):
    """new stream k = post[k] y + sum_j comb[j][k] x[j]"""
    v = x.float()
    mixed = (comb.unsqueeze(-1) * v.unsqueeze(2)).sum(1)
    return (post.unsqueeze(-1) * y.float().unsqueeze(1) + mixed).to(x.dtype)


@fast
def engram_gate(x, key, val, qk):
    """x [N, H, D], key [N, H, D], val [N, D], qk = q_weight * k_weight [H, D]."""
    v, k = x.float(), key.float()
    d = (v * qk * k).sum(-1)
    d = d * torch.rsqrt((v * v).mean(-1) + 1e-20) * torch.rsqrt((k * k).mean(-1) + 1e-20) * x.shape[-1] ** -0.5
    root = torch.sqrt(torch.clamp(d.abs(), min=1e-6))
    g = torch.sigmoid(torch.where(d < 0, -root, root))
    return (v + g.unsqueeze(-1) * val.float().unsqueeze(1)).to(x.dtype)


@fast
def swiglu(a, b, wt, limit):
    """a, b [N, E+1, I]; wt [N, E+1] fp32 route weights (1 for the shared expert, 0 for experts not selected)."""
    b = torch.clamp(b.float(), -limit, limit)
    a = torch.clamp(a.float(), max=limit)
    return (a * torch.sigmoid(a) * b * wt.unsqueeze(-1)).to(wt.dtype)


@fast
def softmax_forward(lw, lc, mw, mc, sink, scale):
    """Joint softmax over window logits lw [..., H, q, Lw], compressed logits lc [..., H, q, G] and a sink per head."""
    s = sink.view(-1, 1, 1)
    lw = torch.where(mw.unsqueeze(-3), lw.float() * scale, torch.full((), -math.inf, device=lw.device))
    lc = torch.where(mc.unsqueeze(-3), lc.float() * scale, torch.full((), -math.inf, device=lw.device))
    m = torch.maximum(torch.maximum(lw.amax(-1, keepdim=True), lc.amax(-1, keepdim=True)), s)
    ew, ec, es = torch.exp(lw - m), torch.exp(lc - m), torch.exp(s - m)
    den = ew.sum(-1, keepdim=True) + ec.sum(-1, keepdim=True) + es
    return ew / den, ec / den, es / den


@fast
def softmax_backward(pw, pc, ps, gw, gc, scale):
    gw, gc, pw, pc = gw.float(), gc.float(), pw.float(), pc.float()
    dot = (pw * gw).sum(-1, keepdim=True) + (pc * gc).sum(-1, keepdim=True)
    return scale * pw * (gw - dot), scale * pc * (gc - dot), -(ps * dot)


class SinkSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, lw, lc, mw, mc, sink, scale):
        pw, pc, ps = softmax_forward(lw, lc, mw, mc, sink, scale)
        pw, pc = pw.to(lw.dtype), pc.to(lc.dtype)
        ctx.save_for_backward(pw, pc, ps)
        ctx.scale = scale
        return pw, pc

    @staticmethod
    def backward(ctx, gw, gc):
        pw, pc, ps = ctx.saved_tensors
        dw, dc, ds = softmax_backward(pw, pc, ps, gw, gc, ctx.scale)
        return dw.to(pw.dtype), dc.to(pc.dtype), None, None, ds.sum((0, 1, 3, 4)), None


SINK_SOFTMAX = SinkSoftmax.apply


@fast
def index_scores(dots, w):
    """dots [..., h, G] = iq . ik; w [..., h] -> sum_h w_h relu(dots_h)"""
    return (torch.relu(dots.float()) * w.float().unsqueeze(-1)).sum(-2)


@fast
def index_loss(score, lw, lc, mw, mc, sink, scale, weight):
    """Cross entropy of softmax(index score) against the attention mass (all heads) that a dense softmax over window,
    sink and every visible group would give to each group. score [.., q, G]; lw, lc [.., H, q, *] detached logits;
    weight [.., q]: importance of a query."""
    s = sink.view(-1, 1, 1)
    ninf = torch.full((), -math.inf, device=lw.device)
    lw = torch.where(mw.unsqueeze(-3), lw.float() * scale, ninf)
    lc = torch.where(mc.unsqueeze(-3), lc.float() * scale, ninf)
    m = torch.maximum(torch.maximum(lw.amax(-1, keepdim=True), lc.amax(-1, keepdim=True)), s)
    ec = torch.exp(lc - m)
    mass = (ec / (torch.exp(lw - m).sum(-1, keepdim=True) + ec.sum(-1, keepdim=True) + torch.exp(s - m))).mean(-3)
    score = torch.where(mc, score.float(), torch.full((), -1e4, device=lw.device))
    return -(weight * (mass * torch.log_softmax(score, -1)).sum(-1)).sum() / weight.sum()


def top_mask(score, k):
    """Boolean mask of the k best of the last axis (all if fewer); equal scores: lower index first (spec 4.3)."""
    idx = torch.sort(-score, dim=-1, stable=True)[1][..., :min(k, score.shape[-1])]
    return torch.zeros_like(score, dtype=torch.bool).scatter_(-1, idx, True)


def select_plain(score, visible, cand, k, k_blocks, mode, block):
    """score, visible [..., G]. mode 1 also returns the candidate groups (whole blocks), mode 2 obeys them."""
    score = score.masked_fill(~visible, -math.inf)
    if mode == 1:
        G = score.shape[-1]
        nb = -(-G // block)
        best = F.pad(score, (0, nb * block - G), value=-math.inf).view(*score.shape[:-1], nb, block).amax(-1)
        some = best > -math.inf
        order = torch.arange(nb, device=score.device)
        newest = torch.where(some, order, torch.full_like(order, -1)).amax(-1, keepdim=True)
        best = best.masked_fill((order == newest) & some, math.inf)
        cand = (top_mask(best, k_blocks) & some).repeat_interleave(block, -1)[..., :G]
    elif mode == 2:
        score = score.masked_fill(~cand, -math.inf)
    return top_mask(score, k) & (score > -math.inf), cand


SELECT = None


class GatherRows(torch.autograd.Function):
    """table[idx] whose backward is one index_add (capturable in a CUDA graph, no sorting)."""
    @staticmethod
    def forward(ctx, table, idx):
        ctx.save_for_backward(idx)
        ctx.shape = table.shape
        return table[idx]

    @staticmethod
    def backward(ctx, g):
        idx, = ctx.saved_tensors
        out = torch.zeros(ctx.shape, dtype=torch.float32, device=g.device)
        out.index_add_(0, idx.reshape(-1), g.reshape(-1, g.shape[-1]).float())
        return out.to(g.dtype), None


# ---------------------------------------------------------------------------------------------------- parameters
def param_shapes(c):
    """name -> (shape, kind). kind decides initialisation, optimiser and stored dtype:
    matrix (Muon, bf16), table (embeddings, head: Adam, bf16), norm (bf16), f32 (mHC, sinks), gate, small."""
    D, H, I, E = c.hidden_size, c.hc_mult, c.moe_intermediate_size, c.n_routed_experts
    hd, mix = c.head_dim, (2 + c.hc_mult) * c.hc_mult
    s = {"embed.weight": ((c.vocab_size, D), "table"), "head.weight": ((c.vocab_size, D), "table"),
         "norm.weight": ((D,), "norm")}
    for l in range(c.num_hidden_layers):
        p = f"layers.{l}."
        for site in ("attn", "ffn"):
            s[p + site + "_norm.weight"] = ((D,), "norm")
            s[p + f"hc_{site}_fn"] = ((mix, H * D), "hc_fn")
            s[p + f"hc_{site}_base"] = ((mix,), "f32")
            s[p + f"hc_{site}_scale"] = ((3,), "f32")
        a = p + "attn."
        s[a + "attn_sink"] = ((c.num_attention_heads,), "f32")
        s[a + "wq_a.weight"] = ((c.q_lora_rank, D), "matrix")
        s[a + "q_norm.weight"] = ((c.q_lora_rank,), "norm")
        s[a + "wq_b.weight"] = ((c.num_attention_heads * hd, c.q_lora_rank), "matrix")
        s[a + "wkv.weight"] = ((hd, D), "matrix")
        s[a + "kv_norm.weight"] = ((hd,), "norm")
        s[a + "wo_a.weight"] = ((c.o_groups, c.o_lora_rank, c.num_attention_heads * hd // c.o_groups), "matrix")
        s[a + "wo_b.weight"] = ((D, c.o_groups * c.o_lora_rank), "matrix")
        if l in c.kv_source_layer_ids:
            s[a + "compressor.wkv.weight"] = ((hd, D), "matrix")
            if c.ratio(l) > 1:
                s[a + "compressor.wgate.weight"] = ((hd, D), "matrix")
            s[a + "compressor.norm.weight"] = ((hd,), "norm")
            s[a + "indexer.wk.weight"] = ((c.index_head_dim, hd), "matrix")
            s[a + "indexer.k_norm.weight"] = ((c.index_head_dim,), "norm")
        if l in c.index_source_layer_ids:
            s[a + "indexer.wq_b.weight"] = ((c.index_n_heads * c.index_head_dim, c.q_lora_rank), "matrix")
            s[a + "indexer.weights_proj.weight"] = ((c.index_n_heads, D), "small")
        s[p + "ffn.gate.weight"] = ((E, D), "small")
        s[p + "ffn.gate.bias"] = ((E,), "bias")
        s[p + "ffn.w1"] = ((E + 1, I, D), "matrix")
        s[p + "ffn.w3"] = ((E + 1, I, D), "matrix")
        s[p + "ffn.w2"] = ((E + 1, D, I), "matrix")
    for l, rows in zip(c.engram_layer_ids, c.engram_rows()):
        p = f"layers.{l}.engram."
        s[p + "embed.weight"] = ((rows, c.engram_head_dim), "engram")
        s[p + "wkv.weight"] = ((H + 1, D, (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim), "matrix")
        s[p + "q_weight"] = ((H, D), "norm")
        s[p + "k_weight"] = ((H, D), "norm")
    return s


def init_params(c, seed=0):
    """fp32 master parameters. Output-side matrices start small, mHC starts close to an ordinary residual stream."""
    g = torch.Generator().manual_seed(seed)
    H, out = c.hc_mult, {}
    for name, (shape, kind) in param_shapes(c).items():
        if kind == "norm":
            t = torch.ones(shape)
        elif kind == "matrix":
            t = torch.randn(shape, generator=g) * shape[-1] ** -0.5
            if name.endswith(("wo_b.weight", "ffn.w2")):
                t *= 0.3
            if name.endswith("engram.wkv.weight"):
                t[H:] *= 0.3
        elif kind == "table":
            t = torch.randn(shape, generator=g) * (1.0 if name == "embed.weight" else shape[-1] ** -0.5 * 0.5)
        elif kind == "engram":
            t = torch.randn(shape, generator=g) * 0.5
        elif kind == "small":
            t = torch.randn(shape, generator=g) * shape[-1] ** -0.5 * (1.0 if "weights_proj" in name else 0.5)
        elif kind == "hc_fn":
            t = torch.randn(shape, generator=g) * 0.02 * shape[-1] ** -0.5
        elif name.endswith("_base"):          # pre ~ 0.25 each, post ~ 1, comb near the identity; random, so that streams differ
            t = torch.cat((torch.full((H,), -1.1), torch.zeros(H), (torch.eye(H) * 2.5).flatten()))
            t += torch.randn(t.shape, generator=g) * 0.4
        elif name.endswith("_scale"):
            t = torch.ones(shape)
        else:                                  # sinks, gate bias
            t = torch.zeros(shape)
        out[name] = t
    return out


def rope_frequencies(c, compressed):
    """Inverse frequencies (spec 3.2), float32 like the reference."""
    d, base = c.qk_rope_head_dim, c.compress_rope_theta if compressed else c.rope_theta
    f = (np.float32(1) / (np.float32(base) ** (np.arange(0, d, 2, dtype=np.float32) / np.float32(d)))).astype(np.float32)
    if compressed:
        dim = lambda n: d * math.log(c.yarn_original_max / (n * 2 * math.pi)) / (2 * math.log(base))
        low, high = max(math.floor(dim(c.yarn_beta_fast)), 0), min(math.ceil(dim(c.yarn_beta_slow)), d - 1)
        ramp = np.clip((np.arange(d // 2, dtype=np.float32) - low) / max(high - low, 1e-3), 0, 1).astype(np.float32)
        f = (f / np.float32(c.yarn_factor) * ramp + f * (1 - ramp)).astype(np.float32)
    return torch.from_numpy(f)


# ------------------------------------------------------------------------------------------------------ contexts
class Packed:
    """A training batch: several conversations packed into rows of T tokens (T a multiple of the window).

    start[b, t] is the row index of the first token of the conversation that token t belongs to; conversations start
    at multiples of 8, so groups and candidate blocks never straddle two of them and every conversation is computed
    exactly as if it were alone. Queries are handled in blocks of `window` tokens: a block sees its own and the
    previous block's window keys."""

    def __init__(self, c, ids, start, sub=None, importance=None):
        """ids, start: [B, T]. sub [B, nb, s]: queries of each block that train the indexer; importance [B, T]."""
        B, T = ids.shape
        W = c.sliding_window
        dev = ids.device
        self.c, self.B, self.T, self.nb, self.bq = c, B, T, T // W, W
        self.start, self.sub = start, sub
        if sub is not None:
            first = torch.arange(B * (T // W), device=dev).view(B, -1, 1) * W
            self.sub_token = first + sub                                                # [B, nb, s] of B * T tokens
            H = c.num_attention_heads                                                   # and their rows in [B, nb, H, W]
            self.sub_row = ((first * H).unsqueeze(2) + torch.arange(H, device=dev).view(1, 1, H, 1) * W
                            + sub.unsqueeze(2)).flatten()
            self.sub_weight = importance.flatten()[self.sub_token]
        t = torch.arange(T, device=dev)
        self.pos = t - start
        block = t.view(self.nb, W)
        key = block[:, :1] - W + torch.arange(2 * W, device=dev)                       # [nb, 2W]
        q = block.unsqueeze(-1)
        band = (key.unsqueeze(1) <= q) & (key.unsqueeze(1) > q - W)                     # [nb, W, 2W]
        st = start.view(B, self.nb, W, 1)
        self.mw = band & (key.view(1, self.nb, 1, -1) >= st)
        self.visible = {}
        for r in sorted(set(c.compress_ratios) - {0}):
            first = torch.arange(0, T, r, device=dev)
            self.visible[r] = (q >= first + r - 1) & (first >= st)                      # [B, nb, W, G]
        self.kc, self.ik, self.sel, self.cand, self.scores = {}, {}, {}, None, {}

    def history(self, cid, pad):
        """[B, T, orders] compressed ids of tokens t, t-1, ..., pad where the conversation has none."""
        rows = [cid]
        for k in range(1, self.c.engram_max_ngram_size):
            prev = torch.cat((torch.full_like(cid[:, :k], pad), cid[:, :-k]), 1)
            rows.append(torch.where(self.pos >= k, prev, torch.full_like(prev, pad)))
        return torch.stack(rows, -1)

    def to_blocks(self, q):                                # [B, T, H, d] -> [B, nb, H, bq, d]
        return q.view(self.B, self.nb, self.bq, *q.shape[2:]).transpose(2, 3)

    def window(self, l, kv):                               # [B, T, d] -> keys [B, nb, 2W, d], mask
        k = kv.view(self.B, self.nb, self.bq, -1)
        prev = torch.cat((torch.zeros_like(k[:, :1]), k[:, :-1]), 1)
        return torch.cat((prev, k), 2), self.mw

    def pair(self, l, k, g):
        return k.view(self.B, -1, 2, k.shape[-1]), g.view(self.B, -1, 2, g.shape[-1])

    def group_positions(self, r):
        return self.pos[:, ::r]

    def add_global(self, l, kc, ik):
        self.kc[l], self.ik[l] = kc, ik


class Cached:
    """One sequence with caches: call model.forward repeatedly with a few new tokens each time."""

    def __init__(self, c):
        self.c, self.n, self.B, self.nb = c, 0, 1, 1
        self.win, self.kc, self.ik, self.open, self.hist = {}, {}, {}, {}, None
        self.sub = None

    def begin(self, ids):
        c, n = self.c, ids.shape[1]
        self.T = self.bq = n
        self.pos = (self.n + torch.arange(n)).unsqueeze(0)
        self.sel, self.cand, self.scores = {}, None, {}
        t = self.pos[0].unsqueeze(-1)
        first = max(0, self.n - (c.sliding_window - 1))
        key = torch.arange(first, self.n + n)
        self.mw = ((key <= t) & (key > t - c.sliding_window)).view(1, 1, n, -1)
        self.visible = {}
        for r in sorted(set(c.compress_ratios) - {0}):
            g = torch.arange((self.n + n) // r) * r
            self.visible[r] = (t >= g + r - 1).view(1, 1, n, -1)
        self.base, self.n = self.n, self.n + n

    def history(self, cid, pad):
        m = self.c.engram_max_ngram_size - 1
        old = self.hist if self.hist is not None else torch.full((1, m), pad)
        full = torch.cat((old, cid), 1)
        self.hist = full[:, -m:]
        return torch.stack([full[:, m - k:full.shape[1] - k] for k in range(m + 1)], -1)

    def to_blocks(self, q):
        return q.view(1, 1, *q.shape[1:]).transpose(2, 3)

    def window(self, l, kv):
        rows = torch.cat((self.win[l], kv), 1) if l in self.win else kv
        self.win[l] = rows[:, -(self.c.sliding_window - 1):]
        return rows.unsqueeze(1), self.mw

    def pair(self, l, k, g):
        if l in self.open:
            k, g = torch.cat((self.open[l][0], k), 1), torch.cat((self.open[l][1], g), 1)
        m = k.shape[1] // 2 * 2
        self.open[l] = (k[:, m:], g[:, m:])
        return k[:, :m].view(1, -1, 2, k.shape[-1]), g[:, :m].view(1, -1, 2, g.shape[-1])

    def group_positions(self, r):
        return (torch.arange(self.base // r, self.n // r) * r).unsqueeze(0)

    def add_global(self, l, kc, ik):
        self.kc[l] = torch.cat((self.kc[l], kc), 1) if l in self.kc else kc
        self.ik[l] = torch.cat((self.ik[l], ik), 1) if l in self.ik else ik


# --------------------------------------------------------------------------------------------------------- model
class Model:
    def __init__(self, cfg, params, cmap):
        """params: name -> tensor (fp32, or bf16 matrices for training); cmap: int64 [vocab] compressed ids."""
        self.c, self.p = cfg, params
        dev = params["embed.weight"].device
        self.dtype = params["embed.weight"].dtype
        self.freq = {0: rope_frequencies(cfg, False).to(dev), 1: rope_frequencies(cfg, True).to(dev)}
        self.cmap = torch.as_tensor(cmap, dtype=torch.int64, device=dev)
        self.pad = int(cmap[cfg.engram_pad_token_id])
        self.primes = torch.tensor(cfg.engram_primes(), device=dev)                       # [layers, orders, heads]
        mult = np.stack(cfg.engram_multipliers())
        self.mult = torch.from_numpy(mult).to(dev)
        self.sparse = True            # False: dense attention over all visible groups (first training phase)
        self.limits = torch.tensor([cfg.index_topk, cfg.candidate_topk_blocks], dtype=torch.int32, device=dev)
        self.aux = []                 # indexer losses of the last forward pass
        self.load = {}                # share of tokens per expert, by layer
        self.balance = []             # load-balancing losses of the last forward pass

    # -- helpers
    def lin(self, x, name):
        w = self.p[name]
        return F.linear(x.to(w.dtype), w)

    def angles(self, pos, r):
        a = pos.float().unsqueeze(-1) * self.freq[1 if r else 0]
        return torch.cos(a), torch.sin(a)

    # -- engram (spec 6)
    def engram_rows(self, ctx, ids):
        h = ctx.history(self.cmap[ids], self.pad)
        out = {}
        for i, l in enumerate(self.c.engram_layer_ids):
            run, offset, cols = h[..., 0] * self.mult[i, 0], 0, []
            for n in range(1, self.c.engram_max_ngram_size):
                run = run ^ (h[..., n] * self.mult[i, n])
                for j, prime in enumerate(self.c.engram_primes()[i][n - 1]):
                    cols.append(run % prime + offset)
                    offset += prime
            out[l] = torch.stack(cols, -1)                                              # [B, T, columns]
        return out

    def engram(self, l, x, rows):
        p, c = f"layers.{l}.engram.", self.c
        table = self.p[p + "embed.weight"]
        table = straight(table.float(), quant_fp8_block32(table)).to(table.dtype)
        r = GatherRows.apply(table, rows).flatten(-2).flatten(0, 1)                       # [N, columns * 64]
        w = self.p[p + "wkv.weight"]
        kv = F.linear(r, w.reshape(-1, w.shape[-1]))
        key, val = kv[:, :c.hc_mult * c.hidden_size].reshape(-1, c.hc_mult, c.hidden_size), kv[:, c.hc_mult * c.hidden_size:]
        return engram_gate(x, key, val, (self.p[p + "q_weight"].float() * self.p[p + "k_weight"].float()))

    # -- hyper-connections (spec 2)
    def site(self, l, kind, x):
        p = f"layers.{l}.hc_{kind}_"
        fn = self.p[p + "fn"]
        m = F.linear(x.flatten(1), fn.to(x.dtype))
        pre, post, logit = hc_gates(x, m, self.p[p + "base"], self.p[p + "scale"], self.c.hc_eps)
        return pre, post, SINKHORN(logit, self.c.hc_sinkhorn_iters, self.c.hc_eps)

    # -- attention (spec 3)
    def compress(self, l, u, ctx):
        """u [N, D]: appends the latents' two cache rows of source layer l to the context."""
        c, p, r, B = self.c, f"layers.{l}.attn.", self.c.ratio(l), ctx.B
        k = self.lin(u, p + "compressor.wkv.weight")
        norm = self.p[p + "compressor.norm.weight"].float()
        if r == 1:
            latent = norm_(k, norm)
        else:
            g = self.lin(u, p + "compressor.wgate.weight")
            k, g = ctx.pair(l, k.view(B, -1, c.head_dim), g.view(B, -1, c.head_dim))
            latent = pool_pair(k.flatten(0, 1), g.flatten(0, 1), norm)                    # [B*G, d]
        cos, sin = self.angles(ctx.group_positions(r).flatten(), r)
        ik = index_key_row(self.lin(latent.detach(), p + "indexer.wk.weight"), self.p[p + "indexer.k_norm.weight"].float(), cos, sin)
        kc = latent_row(latent, cos, sin)
        G = latent.shape[0] // B
        ctx.add_global(l, kc.view(B, G, c.head_dim), ik.view(B, G, c.index_head_dim))

    def index_dots(self, l, u, qr, ctx, cos, sin, rows=None):
        """Products of index queries and keys of layer l [B, nb, q, heads, G] and head weights [B, nb, q, heads]; for
        the query tokens `rows` ([B, nb, q] numbers in the flattened batch) or for all of them."""
        p, c = f"layers.{l}.attn.indexer.", self.c
        u, qr, shape = u.detach(), qr.detach(), (ctx.B, ctx.nb, ctx.bq)
        if rows is not None:
            u, qr, cos, sin = (z.index_select(0, rows.flatten()) for z in (u, qr, cos, sin))
            shape = rows.shape
        iq = self.lin(qr, p + "wq_b.weight").view(-1, c.index_n_heads, c.index_head_dim)
        iq = index_query_row(iq, cos.unsqueeze(1), sin.unsqueeze(1))
        w = self.lin(u, p + "weights_proj.weight") * (c.index_n_heads ** -0.5 * c.index_head_dim ** -0.5)
        ik = ctx.ik[c.kv_source(l)]
        dots = torch.matmul(iq.view(ctx.B, -1, c.index_head_dim), ik.transpose(1, 2))
        return dots.view(*shape, c.index_n_heads, -1), w.view(*shape, -1)

    @torch.no_grad()
    def select(self, l, u, qr, ctx, cos, sin):
        """Selected groups of layer l's queries: bool [B, nb, q, G]."""
        c, r = self.c, self.c.ratio(l)
        visible = ctx.visible[r]
        if visible.shape[-1] == 0:
            return visible
        dots, w = self.index_dots(l, u, qr, ctx, cos, sin)
        after = 0 <= c.candidate_source_layer_id < l
        mode = 1 if l == c.candidate_source_layer_id else 2 if after else 0
        if SELECT is not None and isinstance(ctx, Packed):
            keep, ctx.cand = SELECT(dots, w, ctx.start, ctx.cand, self.limits, r, mode, c.candidate_block_size)
        else:
            keep, ctx.cand = select_plain(index_scores(dots, w), visible, ctx.cand, c.index_topk, c.candidate_topk_blocks,
                                          mode, c.candidate_block_size)
        return keep

    def attention(self, l, u, ctx):
        """u [N, D] normalised input, N = B*T."""
        c, p, r = self.c, f"layers.{l}.attn.", self.c.ratio(l)
        B, T, H, hd = ctx.B, ctx.T, c.num_attention_heads, c.head_dim
        cos, sin = self.angles(ctx.pos.flatten(), r)                                      # [N, rope/2]
        qr = norm_(self.lin(u, p + "wq_a.weight"), self.p[p + "q_norm.weight"].float())
        q = rotate_(self.lin(qr, p + "wq_b.weight").view(-1, H, hd), cos.unsqueeze(1), sin.unsqueeze(1))
        q = ctx.to_blocks(q.view(B, T, H, hd))                                            # [B, nb, H, bq, hd]
        kv = window_row(self.lin(u, p + "wkv.weight"), self.p[p + "kv_norm.weight"].float(), cos, sin).view(B, T, hd)
        kw, mw = ctx.window(l, kv)
        nb, bq = ctx.nb, ctx.bq
        lw = torch.matmul(q.reshape(B, nb, H * bq, hd), kw.transpose(2, 3)).view(B, nb, H, bq, -1)
        sink, scale = self.p[p + "attn_sink"], hd ** -0.5
        if r:
            src = c.kv_source(l)
            if l in c.kv_source_layer_ids:
                self.compress(l, u, ctx)
            kc, visible = ctx.kc[src], ctx.visible[r]
            isrc = max(s for s in c.index_source_layer_ids if s <= l)
            if l == isrc:
                ctx.sel = self.select(l, u, qr, ctx, cos, sin) if self.sparse else visible
            mc = ctx.sel
            lc = torch.matmul(q.reshape(B, nb * H * bq, hd), kc.transpose(1, 2)).view(B, nb, H, bq, -1)
            if ctx.sub is not None:            # train the indexer on a sample of the query rows
                if l == isrc:
                    ctx.scores = index_scores(*self.index_dots(l, u, qr, ctx, cos, sin, ctx.sub_token))
                pick = lambda z: z.detach().flatten(0, 2).index_select(0, ctx.sub_token.flatten()).view(*ctx.sub.shape, -1)
                heads = lambda z: z.detach().flatten(0, 3).index_select(0, ctx.sub_row).view(B, nb, H, ctx.sub.shape[-1], -1)
                self.aux.append(index_loss(ctx.scores, heads(lw), heads(lc), pick(mw), pick(visible),
                                           sink.detach(), scale, ctx.sub_weight))
        else:
            kc = kw.new_zeros(B, 1, hd)
            lc = lw.new_zeros(B, nb, H, bq, 1)
            mc = torch.zeros(B, nb, bq, 1, dtype=torch.bool, device=u.device)
        if lc.shape[-1] == 0:                 # ratio 2, first token: no group yet
            kc, lc = kw.new_zeros(B, 1, hd), lw.new_zeros(B, nb, H, bq, 1)
            mc = torch.zeros(B, nb, bq, 1, dtype=torch.bool, device=u.device)
        pw, pc = SINK_SOFTMAX(lw, lc, mw, mc, sink, scale)
        o = torch.matmul(pw.view(B, nb, H * bq, -1), kw).view(B, nb, H, bq, hd)
        if r:
            o = o + torch.matmul(pc.view(B, nb * H * bq, -1), kc).view(B, nb, H, bq, hd)
        o = o.transpose(2, 3).reshape(B * T, H, hd)
        o = rotate_(o, cos.unsqueeze(1), -sin.unsqueeze(1)).view(B * T, c.o_groups, -1)
        z = torch.einsum("ngi,goi->ngo", o, self.p[p + "wo_a.weight"]).reshape(B * T, -1)
        return self.lin(z, p + "wo_b.weight")

    # -- mixture of experts (spec 5); every expert is evaluated and the unselected ones get weight 0
    def moe(self, l, u):
        c, p = self.c, f"layers.{l}.ffn."
        E, K, I, D = c.n_routed_experts, c.num_experts_per_tok, c.moe_intermediate_size, c.hidden_size
        score = torch.sqrt(F.softplus(F.linear(u.float(), self.p[p + "gate.weight"].float())))
        with torch.no_grad():
            biased = score + self.p[p + "gate.bias"]
            chosen = torch.zeros_like(score).scatter_(-1, torch.topk(biased, K, sorted=False)[1], 1.0)
            self.load[l] = chosen.mean(0)
        if torch.is_grad_enabled():
            self.balance.append((self.load[l] * (score / score.sum(-1, keepdim=True)).mean(0)).sum() * E / K)
        wt = score * chosen
        wt = c.routed_scaling_factor * wt / (wt.sum(-1, keepdim=True) + 1e-20)
        wt = torch.cat((wt, torch.ones_like(wt[:, :1])), -1)
        a = F.linear(u, self.p[p + "w1"].reshape(-1, D)).view(-1, E + 1, I)
        b = F.linear(u, self.p[p + "w3"].reshape(-1, D)).view(-1, E + 1, I)
        h = swiglu(a, b, wt, c.swiglu_limit).to(u.dtype)
        w2 = self.p[p + "w2"].permute(1, 0, 2).reshape(D, -1)
        return F.linear(h.flatten(1), w2)

    def forward(self, ids, ctx, last=None):
        """ids [B, T] -> hidden states before the head [B*T, D] (last=n: only the last n tokens, cached use)."""
        c = self.c
        if isinstance(ctx, Cached):
            ctx.begin(ids)
        self.aux, self.load, self.balance = [], {}, []
        rows = self.engram_rows(ctx, ids)
        x = GatherRows.apply(self.p["embed.weight"], ids).flatten(0, 1)
        x = x.unsqueeze(1).expand(-1, c.hc_mult, -1).contiguous()                         # [N, H, D]
        a = torch.zeros(x.shape[0], c.hc_mult, device=x.device)
        a[:, 0] = 1
        for l in range(c.num_hidden_layers):
            p = f"layers.{l}."
            if l in rows:
                x = self.engram(l, x, rows[l])
            pre, post, comb = self.site(l, "attn", x)
            u = collapse_norm(x, a, self.p[p + "attn_norm.weight"].float())
            y = self.attention(l, u, ctx)
            x = hc_expand(y, x, post, comb)
            nxt, post, comb = self.site(l, "ffn", x)
            u = collapse_norm(x, pre, self.p[p + "ffn_norm.weight"].float())
            x = hc_expand(self.moe(l, u), x, post, comb)
            a = nxt
        if last:
            x, a = x[-last:], a[-last:]
        return collapse_norm(x, a, self.p["norm.weight"].float())

    def logits(self, h):
        return self.lin(h, "head.weight").float()


# ------------------------------------------------------------------------------------------------- config.json
_ROPE = dict(yarn_factor="factor", yarn_beta_fast="beta_fast", yarn_beta_slow="beta_slow",
             yarn_original_max="original_max_position_embeddings")


def config_json(c, image_token_id):
    """The nested config.json of the release (spec 1.1)."""
    d = dataclasses.asdict(c)
    rope = {"rope_type": "yarn"}
    for ours, theirs in _ROPE.items():
        rope[theirs] = d.pop(ours)
    d = {k: list(v) if isinstance(v, tuple) else v for k, v in d.items()}
    d.update(model_type="deepseek_v41_text", num_key_value_heads=1, n_shared_experts=1, scoring_func="sqrtsoftplus",
             topk_method="noaux_tc", norm_topk_prob=True, hidden_act="silu", attention_bias=False, rope_scaling=rope,
             engram_num_embeddings=c.engram_rows(), num_nextn_predict_layers=0, dspark_target_layer_ids=[],
             tie_word_embeddings=False)
    return {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": image_token_id, "text_config": d}


def config_from_json(path):
    with open(path, encoding="utf-8") as f:
        d = json.load(f)["text_config"]
    d.update({ours: d["rope_scaling"][theirs] for ours, theirs in _ROPE.items()})
    names = {f.name for f in dataclasses.fields(Config)}
    return Config(**{k: tuple(v) if isinstance(v, list) else v for k, v in d.items() if k in names})
