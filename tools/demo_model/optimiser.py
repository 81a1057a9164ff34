"""Muon for matrices, Adam for the rest, on fp32 master weights; gradients pass through one flat buffer.

The flat buffer makes data parallelism one all-reduce and clipping one norm. Everything that changes from step to step
lives in small device tensors, so `gather()` and `update()` can be captured in CUDA graphs.
"""

import torch

import model as M

# learning rates at factor 1; "matrix" goes to Muon
ADAM_RATE = {"embed.weight": 0.01, "head.weight": 0.004, "engram": 0.01, "small": 0.002, "norm": 0.001, "hc_fn": 0.0005,
             "f32": 0.002}
MUON_RATE = 0.02
MUON_DECAY = 0.2      # decay bounds the spectral norm of a matrix by 1 / MUON_DECAY
MUON_MOMENTUM, ADAM_B1, ADAM_B2 = 0.95, 0.9, 0.95
CLIP = 2.0            # a gradient longer than CLIP times the running mean of norms is shortened to that length


def orthogonalise(g):
    """Newton-Schulz iteration of Muon (Jordan 2024) on a stack of matrices [n, r, c]; returns f32."""
    x = g.to(torch.bfloat16 if g.is_cuda else torch.float32)
    flip = x.shape[1] > x.shape[2]
    if flip:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * s + 2.0315 * (s @ s)) @ x
    return (x.transpose(1, 2) if flip else x).float()


def noise_share(name, kind):
    """Weight noise of a tensor relative to the configured one: routed and shared experts take the 3-bit format and get
    all of it; the other matrices of the quantised set get three quarters, tensors that stay bf16 none."""
    if ".ffn.w" in name:
        return 1.0
    if kind == "matrix" and "compressor" not in name and "indexer.wk." not in name or name == "head.weight":
        return 0.75
    return 0.0


class Optimiser:
    """params: the tensors the model computes with (bf16 for matrices and tables, f32 otherwise), views of the stacks."""

    def __init__(self, c, master, device, half):
        self.params, self.kinds = {}, {k: kind for k, (_, kind) in M.param_shapes(c).items()}
        self.muon, self.adam = {}, []
        stacks, flat16, flat32 = {}, [], []
        for name, kind in self.kinds.items():
            if kind == "matrix":
                key = (*master[name].shape[-2:], noise_share(name, kind))
                stacks.setdefault(key, []).append(name)
            elif kind == "bias":
                self.params[name] = master[name].to(device)
            else:
                (flat16 if kind in ("table", "engram", "small") else flat32).append(name)
        self.order = []                                   # names in the order of the flat gradient
        for key, names in stacks.items():
            big = torch.cat([master[n].reshape(-1, *key[:2]) for n in names]).to(device)
            low = big.to(half, copy=True)
            self._views(names, master, low.view(-1))
            self.muon[key] = dict(names=names, master=big, low=low, mom=torch.zeros_like(big))
            self.order += names
        for names, dtype in ((flat16, half), (flat32, torch.float32)):
            big = torch.cat([master[n].reshape(-1) for n in names]).to(device)
            low = big if dtype == torch.float32 and half != torch.float32 else big.to(dtype, copy=True)
            self._views(names, master, low)
            rate = torch.cat([torch.full((master[n].numel(),), ADAM_RATE.get(n, ADAM_RATE.get(self.kinds[n], 0.003)))
                              for n in names]).to(device)
            noisy = torch.cat([torch.full((master[n].numel(),), noise_share(n, self.kinds[n])) for n in names]).to(device)
            self.adam.append(dict(names=names, master=big, low=low, rate=rate, noisy=noisy, m=torch.zeros_like(big),
                                  v=torch.zeros_like(big)))
            self.order += names
        self.flat = torch.zeros(sum(self.params[n].numel() for n in self.order), device=device)
        self.hyper = torch.zeros(5, device=device)        # rate, noise, 1/(1-b1^t), 1/(1-b2^t), balance rate
        self.norm = torch.zeros(2, device=device)         # this step's gradient norm, running mean (0: none yet)

    def _views(self, names, master, low):
        at = 0
        for n in names:
            k = master[n].numel()
            self.params[n] = low[at:at + k].view(master[n].shape).detach().requires_grad_()
            at += k

    @torch.no_grad()
    def refresh(self):
        """Masters -> model weights, with weight noise relative to each matrix's rms."""
        noise = self.hyper[1]
        for (_, _, share), s in self.muon.items():
            w = s["master"]
            if share:
                w = w + torch.randn_like(w) * (w.square().mean((1, 2), keepdim=True).sqrt() * (noise * share))
            s["low"].copy_(w)
        for a in self.adam:
            if a["low"] is not a["master"]:
                w, n = a["master"], a["noisy"]
                rms = ((w * w * (n > 0)).sum() / (n > 0).sum().clamp(min=1)).sqrt()
                a["low"].copy_(w + torch.randn_like(w) * n * rms * noise)

    @torch.no_grad()
    def gather(self):
        """Gradients of the parameters -> self.flat (f32)."""
        torch.cat([self.params[n].grad.reshape(-1).float() for n in self.order], out=self.flat)

    @torch.no_grad()
    def update(self):
        """One step with the gradients in self.flat."""
        lr = self.hyper[0]
        norm = self.flat.norm()
        sane = torch.isfinite(norm)
        mean = torch.where(self.norm[1] == 0, norm, self.norm[1])
        shrink = torch.where(sane, torch.clamp(CLIP * mean / (norm + 1e-12), max=1.0), 0.0)
        self.norm.copy_(torch.stack((norm, torch.where(sane, torch.lerp(mean, torch.minimum(norm, CLIP * mean), 0.02),
                                                       self.norm[1]))))
        flat = torch.where(sane, self.flat, 0.0) * shrink
        at = 0
        for (r, c, _), s in self.muon.items():
            g = flat[at:at + s["master"].numel()].view(s["master"].shape)
            at += g.numel()
            s["mom"].lerp_(g, 1 - MUON_MOMENTUM)
            u = orthogonalise(g.lerp(s["mom"], MUON_MOMENTUM))
            s["master"].mul_(1 - MUON_RATE * lr * MUON_DECAY).sub_(u * (MUON_RATE * lr * max(1.0, r / c) ** 0.5))
        for a in self.adam:
            g = flat[at:at + a["master"].numel()]
            at += g.numel()
            a["m"].lerp_(g, 1 - ADAM_B1)
            a["v"].lerp_(g * g, 1 - ADAM_B2)
            a["master"].sub_(lr * a["rate"] * (a["m"] * self.hyper[2]) / ((a["v"] * self.hyper[3]).sqrt() + 1e-10))

    def state(self):
        """Every tensor that a step changes."""
        out = [p for n, p in self.params.items() if self.kinds[n] == "bias"] + [self.norm]
        for s in self.muon.values():
            out += [s["master"], s["mom"]]
        for a in self.adam:
            out += [a["master"], a["m"], a["v"]]
        return out

    def masters(self):
        """name -> f32 master weights."""
        out = {n: p.detach().float().clone() for n, p in self.params.items() if self.kinds[n] == "bias"}
        for group in (*self.muon.values(), *self.adam):
            at, flat = 0, group["master"].view(-1)
            for n in group["names"]:
                k = self.params[n].numel()
                out[n] = flat[at:at + k].view(self.params[n].shape)
                at += k
        return out
