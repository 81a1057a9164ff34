"""Triton kernels for the three leaf functions that dominate a training step, and `install()`, which puts them to use.

Each has a plain PyTorch twin in model.py; `self_check()` compares them on random data. TRITON_INTERPRET=1 runs the
kernels on a CPU.
"""

import torch
import triton
import triton.language as tl

import model as M


@triton.jit
def sinkhorn_forward(x_ptr, y_ptr, rows_ptr, cols_ptr, n, EPS: tl.constexpr, ITERS: tl.constexpr, H: tl.constexpr,
                     BLOCK: tl.constexpr):
    """x, y: [n, H, H] f32. BLOCK matrices a program, all iterations in registers. rows, cols [ITERS, n, H] f32 get the
    divisors of every normalisation, from which the backward pass gets back every intermediate matrix (rows[0] is unused:
    the softmax needs none)."""
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.arange(0, H)
    at = t[:, None, None] * (H * H) + i[None, :, None] * H + i[None, None, :]
    ok = (t < n)[:, None, None] & (i >= 0)[None, :, None] & (i >= 0)[None, None, :]
    by_row = t[:, None, None] * H + i[None, :, None]
    by_col = t[:, None, None] * H + i[None, None, :]
    one = (t < n)[:, None, None]
    x = tl.load(x_ptr + at, mask=ok, other=0.0)
    e = tl.exp(x - tl.max(x, 2, keep_dims=True))
    c = e / tl.sum(e, 2, keep_dims=True) + EPS
    d = tl.sum(c, 1, keep_dims=True) + EPS
    tl.store(cols_ptr + by_col, d, mask=one & (i >= 0)[None, None, :])
    c = c / d
    for k in range(1, ITERS):
        d = tl.sum(c, 2, keep_dims=True) + EPS
        tl.store(rows_ptr + k * n * H + by_row, d, mask=one & (i >= 0)[None, :, None])
        c = c / d
        d = tl.sum(c, 1, keep_dims=True) + EPS
        tl.store(cols_ptr + k * n * H + by_col, d, mask=one & (i >= 0)[None, None, :])
        c = c / d
    tl.store(y_ptr + at, c, mask=ok)


@triton.jit
def sinkhorn_backward(y_ptr, rows_ptr, cols_ptr, g_ptr, d_ptr, n, EPS: tl.constexpr, ITERS: tl.constexpr,
                      H: tl.constexpr, BLOCK: tl.constexpr):
    """The iterations in reverse: y = c / d with d = sum(c) + eps has dc = (g - sum(g y)) / d and c = y d.

    The gradient at the fixed point would be cheaper and is wrong: rows whose sums have not converged make it grow from
    iteration to iteration, and a few such tokens are enough to bury the gradient of a batch."""
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.arange(0, H)
    at = t[:, None, None] * (H * H) + i[None, :, None] * H + i[None, None, :]
    ok = (t < n)[:, None, None] & (i >= 0)[None, :, None] & (i >= 0)[None, None, :]
    by_row = t[:, None, None] * H + i[None, :, None]
    by_col = t[:, None, None] * H + i[None, None, :]
    one = (t < n)[:, None, None]
    c = tl.load(y_ptr + at, mask=ok, other=0.0)
    g = tl.load(g_ptr + at, mask=ok, other=0.0)
    for j in range(1, ITERS):
        k = ITERS - j
        d = tl.load(cols_ptr + k * n * H + by_col, mask=one & (i >= 0)[None, None, :], other=1.0)
        g = (g - tl.sum(g * c, 1, keep_dims=True)) / d
        c = c * d
        d = tl.load(rows_ptr + k * n * H + by_row, mask=one & (i >= 0)[None, :, None], other=1.0)
        g = (g - tl.sum(g * c, 2, keep_dims=True)) / d
        c = c * d
    d = tl.load(cols_ptr + by_col, mask=one & (i >= 0)[None, None, :], other=1.0)
    g = (g - tl.sum(g * c, 1, keep_dims=True)) / d
    c = c * d - EPS                                         # the softmax
    tl.store(d_ptr + at, c * (g - tl.sum(g * c, 2, keep_dims=True)), mask=ok)


@triton.jit
def softmax_forward(lw_ptr, lc_ptr, mw_ptr, mc_ptr, sink_ptr, pw_ptr, pc_ptr, ps_ptr, scale, W, G,
                    HEADS: tl.constexpr, Q: tl.constexpr, BW: tl.constexpr, BG: tl.constexpr):
    """One program a row of [blocks, HEADS, Q]; masks are [blocks, Q, *]. Joint softmax over window, groups and sink."""
    row = tl.program_id(0)
    head = (row // Q) % HEADS
    at = (row // (Q * HEADS) * Q + row % Q).to(tl.int64)
    iw, ig = tl.arange(0, BW), tl.arange(0, BG)
    w0, g0 = row.to(tl.int64) * W, row.to(tl.int64) * G
    okw = (iw < W) & (tl.load(mw_ptr + at * W + iw, mask=iw < W, other=0) != 0)
    okg = (ig < G) & (tl.load(mc_ptr + at * G + ig, mask=ig < G, other=0) != 0)
    lw = tl.where(okw, tl.load(lw_ptr + w0 + iw, mask=iw < W, other=0.0).to(tl.float32) * scale, -float("inf"))
    lc = tl.where(okg, tl.load(lc_ptr + g0 + ig, mask=ig < G, other=0.0).to(tl.float32) * scale, -float("inf"))
    s = tl.load(sink_ptr + head).to(tl.float32)
    m = tl.maximum(tl.maximum(tl.max(lw, 0), tl.max(lc, 0)), s)
    ew, ec, es = tl.exp(lw - m), tl.exp(lc - m), tl.exp(s - m)
    den = 1.0 / (tl.sum(ew, 0) + tl.sum(ec, 0) + es)
    tl.store(pw_ptr + w0 + iw, (ew * den).to(pw_ptr.dtype.element_ty), mask=iw < W)
    tl.store(pc_ptr + g0 + ig, (ec * den).to(pc_ptr.dtype.element_ty), mask=ig < G)
    tl.store(ps_ptr + row, es * den)


@triton.jit
def softmax_backward(pw_ptr, pc_ptr, ps_ptr, gw_ptr, gc_ptr, dw_ptr, dc_ptr, ds_ptr, scale, W, G,
                     BW: tl.constexpr, BG: tl.constexpr):
    row = tl.program_id(0)
    iw, ig = tl.arange(0, BW), tl.arange(0, BG)
    w0, g0 = row.to(tl.int64) * W, row.to(tl.int64) * G
    pw = tl.load(pw_ptr + w0 + iw, mask=iw < W, other=0.0).to(tl.float32)
    pc = tl.load(pc_ptr + g0 + ig, mask=ig < G, other=0.0).to(tl.float32)
    gw = tl.load(gw_ptr + w0 + iw, mask=iw < W, other=0.0).to(tl.float32)
    gc = tl.load(gc_ptr + g0 + ig, mask=ig < G, other=0.0).to(tl.float32)
    dot = tl.sum(pw * gw, 0) + tl.sum(pc * gc, 0)
    tl.store(dw_ptr + w0 + iw, (scale * pw * (gw - dot)).to(dw_ptr.dtype.element_ty), mask=iw < W)
    tl.store(dc_ptr + g0 + ig, (scale * pc * (gc - dot)).to(dc_ptr.dtype.element_ty), mask=ig < G)
    tl.store(ds_ptr + row, -tl.load(ps_ptr + row) * dot)


def _warps(block):
    return 4 if block <= 1024 else 8 if block <= 4096 else 16


class SinkSoftmax(torch.autograd.Function):
    """As model.SinkSoftmax: lw [B, nb, H, q, W], lc [B, nb, H, q, G]; masks [B or 1, nb, q, *]."""

    @staticmethod
    def forward(ctx, lw, lc, mw, mc, sink, scale):
        B, nb, H, Q, W = lw.shape
        G = lc.shape[-1]
        lw, lc = lw.contiguous(), lc.contiguous()
        mw, mc = mw.expand(B, -1, -1, -1).contiguous(), mc.expand(B, -1, -1, -1).contiguous()
        pw, pc = torch.empty_like(lw), torch.empty_like(lc)
        ps = torch.empty(lw.shape[:-1], dtype=torch.float32, device=lw.device)
        bw, bg = triton.next_power_of_2(W), max(16, triton.next_power_of_2(G))
        softmax_forward[(B * nb * H * Q,)](lw, lc, mw.view(torch.uint8), mc.view(torch.uint8), sink, pw, pc, ps, scale,
                                           W, G, HEADS=H, Q=Q, BW=bw, BG=bg, num_warps=_warps(bg))
        ctx.save_for_backward(pw, pc, ps)
        ctx.scale = scale
        return pw, pc

    @staticmethod
    def backward(ctx, gw, gc):
        pw, pc, ps = ctx.saved_tensors
        W, G = pw.shape[-1], pc.shape[-1]
        gw, gc = gw.contiguous(), gc.contiguous()
        dw, dc, ds = torch.empty_like(pw), torch.empty_like(pc), torch.empty_like(ps)
        bw, bg = triton.next_power_of_2(W), max(16, triton.next_power_of_2(G))
        softmax_backward[(ps.numel(),)](pw, pc, ps, gw, gc, dw, dc, ds, ctx.scale, W, G, BW=bw, BG=bg,
                                        num_warps=_warps(bg))
        return dw, dc, None, None, ds.sum((0, 1, 3)), None


class Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logit, iters, eps):
        logit = logit.contiguous()
        y = torch.empty_like(logit)
        n, H = logit.shape[0], logit.shape[-1]
        rows, cols = torch.empty(2, iters, n, H, device=logit.device)
        sinkhorn_forward[(triton.cdiv(n, 64),)](logit, y, rows, cols, n, EPS=eps, ITERS=iters, H=H, BLOCK=64)
        ctx.save_for_backward(y, rows, cols)
        ctx.iters, ctx.eps = iters, eps
        return y

    @staticmethod
    def backward(ctx, g):
        y, rows, cols = ctx.saved_tensors
        g = g.contiguous()
        d = torch.empty_like(y)
        n, H = y.shape[0], y.shape[-1]
        sinkhorn_backward[(triton.cdiv(n, 64),)](y, rows, cols, g, d, n, EPS=ctx.eps, ITERS=ctx.iters, H=H, BLOCK=64)
        return d, None, None


@triton.jit
def ordered(x):
    """f32 -> int32 with the same order."""
    b = x.to(tl.int32, bitcast=True)
    return tl.where(b < 0, b ^ 0x7FFFFFFF, b)


@triton.jit
def kth(key, k):
    """The k-th largest of the int32 keys (the smallest possible key if there are fewer), by bisection on the bits."""
    low = tl.where(tl.sum((key >= 0).to(tl.int32), 0) >= k, 0, -2147483648)
    half = tl.full([], 1 << 30, tl.int32)
    for _ in range(31):
        mid = low + half
        half = half >> 1
        low = tl.where(tl.sum((key >= mid).to(tl.int32), 0) >= k, mid, low)
    return low


@triton.jit
def select_kernel(dots_ptr, w_ptr, st_ptr, cand_ptr, keep_ptr, k_ptr, T, G, R: tl.constexpr, H: tl.constexpr,
                  MODE: tl.constexpr, BG: tl.constexpr, CB: tl.constexpr):
    """One program a query: index score, visibility, candidate blocks, exact top-k; equal scores go to the lower group.

    dots [queries, H, G] f32 or bf16; w [queries, H]; st [queries] first token of the query's conversation (row index);
    cand [queries, G] u8, written if MODE = 1, obeyed if MODE = 2; keep [queries, G] u8; k_ptr: int32 (groups, blocks).
    The query's own row index is its number modulo T."""
    row = tl.program_id(0)
    t = row % T
    g0 = row.to(tl.int64) * G
    g = tl.arange(0, BG)
    st = tl.load(st_ptr + row)
    score = tl.zeros([BG], tl.float32)
    for h in range(H):
        d = tl.load(dots_ptr + g0 * H + h * G + g, mask=g < G, other=0.0).to(tl.float32)
        score += tl.load(w_ptr + row * H + h).to(tl.float32) * tl.maximum(d, 0.0)
    visible = (g * R + R - 1 <= t) & (g * R >= st) & (g < G)
    if MODE == 2:
        visible = visible & (tl.load(cand_ptr + g0 + g, mask=g < G, other=0) != 0)
    lowest = -2147483648
    key = tl.where(visible, tl.maximum(ordered(score), lowest + 1), lowest)
    if MODE == 1:
        best = tl.max(tl.reshape(key, (BG // CB, CB)), 1)
        newest = (t - R + 1) // R // CB
        b = tl.arange(0, BG // CB)
        best = tl.where((b == newest) & (best > lowest), 2147483647, best)
        kb = tl.load(k_ptr + 1)
        edge = kth(best, kb)
        tie = (best == edge) & (best > lowest)
        more = tl.sum((best > edge).to(tl.int32), 0)
        chosen = ((best > edge) | (tie & (tl.cumsum(tie.to(tl.int32), 0) <= kb - more))).to(tl.int8)
        spread = tl.reshape(tl.broadcast_to(tl.expand_dims(chosen, 1), (BG // CB, CB)), (BG,))
        tl.store(cand_ptr + g0 + g, spread, mask=g < G)
    k = tl.load(k_ptr)
    edge = kth(key, k)
    tie = (key == edge) & (key > lowest)
    more = tl.sum((key > edge).to(tl.int32), 0)
    keep = ((key > edge) | (tie & (tl.cumsum(tie.to(tl.int32), 0) <= k - more))).to(tl.int8)
    tl.store(keep_ptr + g0 + g, keep, mask=g < G)


def select(dots, w, start, cand, limits, r, mode, block):
    """dots [B, nb, q, H, G], w [B, nb, q, H], start [B, T] int, limits int32 [2]. Returns (keep, candidates) as bool."""
    B, nb, Q, H, G = dots.shape
    keep = torch.empty(B, nb, Q, G, dtype=torch.int8, device=dots.device)
    if mode == 1:
        cand = torch.empty_like(keep)
    other = cand.view(torch.int8) if mode else keep
    bg = max(64, triton.next_power_of_2(G))
    select_kernel[(B * nb * Q,)](dots.contiguous(), w.contiguous(), start.contiguous(), other, keep, limits, nb * Q, G,
                                 R=r, H=H, MODE=mode, BG=bg, CB=block, num_warps=_warps(bg))
    return keep.view(torch.bool), cand.view(torch.bool) if mode else cand


def install():
    M.SINKHORN, M.SINK_SOFTMAX, M.SELECT = Sinkhorn.apply, SinkSoftmax.apply, select


def self_check(device):
    """Raises if a kernel does not agree with its plain twin."""
    torch.manual_seed(0)
    worst = []
    for size in (1, 10, 300):                              # trained logits reach 1,470: their sums never converge
        x = (size * torch.randn(1000, 4, 4, device=device)).requires_grad_()
        g = torch.randn(1000, 4, 4, device=device)
        a, b = M.sinkhorn(x, 20, 1e-6), Sinkhorn.apply(x, 20, 1e-6)
        (da,), (db,) = torch.autograd.grad(a, x, g), torch.autograd.grad(b, x, g)
        worst += [float((u - v).detach().abs().max()) for u, v in ((a, b), (da, db))]
    B, nb, H, Q, W, G = 2, 3, 4, 8, 16, 24
    lw, lc = (torch.randn(B, nb, H, Q, n, device=device, requires_grad=True) for n in (W, G))
    mw, mc = torch.rand(1, nb, Q, W, device=device) < 0.7, torch.rand(B, nb, Q, G, device=device) < 0.3
    sink = torch.randn(H, device=device, requires_grad=True)
    gw, gc = torch.randn_like(lw), torch.randn_like(lc)
    out = [f(lw, lc, mw, mc, sink, 0.3) for f in (M.SinkSoftmax.apply, SinkSoftmax.apply)]
    grad = [torch.autograd.grad(o, (lw, lc, sink), (gw, gc)) for o in out]
    worst += [float((u - v).detach().abs().max()) for p, q in ((out[0], out[1]), (grad[0], grad[1])) for u, v in zip(p, q)]
    for r, mode in ((2, 0), (1, 1), (1, 2)):
        T, k, kb, block = 64, 6, 3, 4
        G = T // r
        start = torch.cat((torch.zeros(2, 16), torch.full((2, T - 16), 16)), 1).long().to(device)
        dots, w = torch.randn(2, 4, 16, 4, G, device=device), torch.randn(2, 4, 16, 4, device=device)
        cand = torch.rand(2, 4, 16, G, device=device) < 0.5
        t = torch.arange(T, device=device).view(4, 16, 1)
        first = torch.arange(0, T, r, device=device)
        visible = (t >= first + r - 1) & (first >= start.view(2, 4, 16, 1))
        want = M.select_plain(M.index_scores(dots, w), visible, cand, k, kb, mode, block)
        limits = torch.tensor([k, kb], dtype=torch.int32, device=device)
        got = select(dots, w, start, cand, limits, r, mode, block)
        worst.append(float((want[0] != got[0]).sum()))
        if mode == 1:
            worst.append(float(((want[1] & visible) != (got[1] & visible)).sum()))
    print("kernels against plain code, worst differences:", " ".join(f"{v:.0e}" for v in worst), flush=True)
    if max(worst) > 2e-3:
        raise SystemExit("a kernel is wrong")


if __name__ == "__main__":
    self_check("cuda" if torch.cuda.is_available() else "cpu")
