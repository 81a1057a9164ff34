"""Compares the gradient of the fast path (bf16, Triton kernels, compiled functions) with that of plain f32 code.

Takes some seconds on a GPU. Stops the run when the fast path's gradient is not the plain one's: a wrong or exploding
gradient does not show in the loss for hundreds of steps, because Muon and Adam hide its length.
"""

import torch
import torch.nn.functional as F

import model as M
import packing

HALF = ("matrix", "table", "engram", "small")


def gradients(c, master, cmap, batch, half, dev):
    """name -> f32 gradient of the loss on `batch` (arrays of packing.Packer.batch), without noise and indexer loss."""
    kinds = {k: kind for k, (_, kind) in M.param_shapes(c).items()}
    p = {k: t.to(dev, half if kinds[k] in HALF else torch.float32).clone() for k, t in master.items()}
    for k, t in p.items():
        t.requires_grad_(kinds[k] != "bias")
    net = M.Model(c, p, cmap)
    ids, kind, start = batch
    h = net.forward(ids, M.Packed(c, ids, start))
    w = torch.tensor(packing.WEIGHTS, device=dev)[F.pad(kind[:, 1:], (0, 1)).flatten()]
    nll = F.cross_entropy(net.logits(h), F.pad(ids[:, 1:], (0, 1)).flatten(), reduction="none")
    ((nll * w).sum() / w.sum()).backward()
    return {k: t.grad.float() for k, t in p.items() if t.grad is not None}


def compare(name, got, want, say):
    """Prints lengths and cosine; True if the gradients are the same thing."""
    dot = sum(float((got[k] * want[k]).sum()) for k in want)
    a, b = (sum(float(g.square().sum()) for g in x.values()) ** 0.5 for x in (got, want))
    worst = sorted(want, key=lambda k: -float((got[k] - want[k]).norm()))[:4]
    say(f"gradient, {name}: length {a:.3f} against {b:.3f}, cosine {dot / (a * b):.4f}; most different: "
        + ", ".join(f"{k} {float(got[k].norm()):.2f}/{float(want[k].norm()):.2f}" for k in worst))
    return dot / (a * b) > 0.8 and 0.5 < a / b < 2


def run(c, master, cmap, batch, plain, say, rows=4):
    """plain: the functions of model.FAST before they were compiled. Raises SystemExit if the fast path is off."""
    dev = torch.device("cuda", torch.cuda.current_device())
    batch = [torch.from_numpy(x[:rows].astype("int64")).to(dev) for x in batch]
    compiled, hooks = dict(M.FAST), (M.SINKHORN, M.SINK_SOFTMAX, M.SELECT)
    M.FAST.update(plain)
    M.SINKHORN, M.SINK_SOFTMAX, M.SELECT = M.sinkhorn, M.SinkSoftmax.apply, None
    want = gradients(c, master, cmap, batch, torch.float32, dev)
    ok = compare("plain bf16", gradients(c, master, cmap, batch, torch.bfloat16, dev), want, say)
    M.SINKHORN, M.SINK_SOFTMAX, M.SELECT = hooks
    ok = compare("kernels, f32", gradients(c, master, cmap, batch, torch.float32, dev), want, say) and ok
    ok = compare("kernels, bf16", gradients(c, master, cmap, batch, torch.bfloat16, dev), want, say) and ok
    M.FAST.update(compiled)
    ok = compare("kernels, bf16, compiled", gradients(c, master, cmap, batch, torch.bfloat16, dev), want, say) and ok
    if not ok:
        raise SystemExit("the fast path's gradient is wrong")
