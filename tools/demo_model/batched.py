"""Greedy decoding of many prompts at once on a GPU: packed prefill, then one CUDA graph a token for the whole batch."""

import torch

import model as M


class Recorder(M.Packed):
    """A prefill of right-padded rows that keeps what decoding needs. cached [B]: tokens of each row that count."""

    def __init__(self, c, ids, cached):
        super().__init__(c, ids, torch.zeros_like(ids))
        self.last, self.kv, self.open = cached - 1, {}, {}

    def window(self, layer, kv):
        W = self.c.sliding_window
        slot = torch.arange(W, device=kv.device)
        at = self.last.unsqueeze(1) - (self.last.unsqueeze(1) - slot) % W        # newest position that falls on each slot
        self.kv[layer] = kv.gather(1, at.clamp(min=0).unsqueeze(-1).expand(-1, -1, kv.shape[-1]))
        return super().window(layer, kv)

    def pair(self, layer, k, g):
        at = self.last.view(-1, 1, 1).expand(-1, 1, k.shape[-1])
        self.open[layer] = k.gather(1, at), g.gather(1, at)
        return super().pair(layer, k, g)


class Decoder:
    """One new token for each of B sequences a step; all state in fixed tensors (a model.py context)."""

    def __init__(self, c, B, length, dev, dtype):
        self.c, self.B, self.T, self.nb, self.bq = c, B, 1, 1, 1
        self.at = torch.zeros(B, dtype=torch.int64, device=dev)                  # position of the token being computed
        W, hd = c.sliding_window, c.head_dim
        make = lambda *s: torch.zeros(B, *s, dtype=dtype, device=dev)
        self.ring = {i: make(W, hd) for i in range(c.num_hidden_layers)}
        groups = {i: length // c.ratio(i) for i in c.kv_source_layer_ids}
        self.kc = {i: make(g, hd) for i, g in groups.items()}
        self.ik = {i: make(g, c.index_head_dim) for i, g in groups.items()}
        self.open = {i: (make(1, hd), make(1, hd)) for i in c.kv_source_layer_ids if c.ratio(i) > 1}
        self.hist = torch.zeros(B, c.engram_max_ngram_size - 1, dtype=torch.int64, device=dev)
        self.slots = torch.arange(W, device=dev)
        self.groups = {r: torch.arange(length // r, device=dev) for r in set(c.compress_ratios) - {0}}
        self.sub, self.length = None, length

    def begin(self):
        self.pos = self.at.unsqueeze(1)
        self.sel, self.cand, self.scores = {}, None, {}
        self.mw = (self.slots <= self.pos).view(self.B, 1, 1, -1)
        self.visible = {r: (g * r + r - 1 <= self.pos).view(self.B, 1, 1, -1) for r, g in self.groups.items()}

    def history(self, cid, pad):
        full = torch.cat((self.hist, cid), 1)
        self.hist.copy_(full[:, 1:])
        return full.flip(1).unsqueeze(1)

    def to_blocks(self, q):
        return q.view(self.B, 1, *q.shape[1:]).transpose(2, 3)

    def window(self, layer, kv):
        self.ring[layer].scatter_(1, (self.at % self.c.sliding_window).view(-1, 1, 1).expand_as(kv), kv)
        return self.ring[layer].unsqueeze(1), self.mw

    def pair(self, layer, k, g):
        old_k, old_g = self.open[layer]
        out = torch.stack((old_k, k), 2), torch.stack((old_g, g), 2)
        old_k.copy_(k)
        old_g.copy_(g)
        return out

    def group_positions(self, r):
        return self.pos // r * r

    def add_global(self, layer, kc, ik):
        group = (self.at // self.c.ratio(layer)).view(-1, 1, 1)
        self.kc[layer].scatter_(1, group.expand_as(kc), kc)
        self.ik[layer].scatter_(1, group.expand_as(ik), ik)


def prefill(net, ids, state, first):
    """ids: token lists whose last token is left to the decoder; fills rows first.. of the decoder state."""
    c, dev = net.c, net.cmap.device
    W = c.sliding_window
    n = torch.tensor([len(i) - 1 for i in ids], device=dev)
    T = -(-int(n.max()) // W) * W
    rows = torch.full((len(ids), T), 2, dtype=torch.int64)
    for r, i in enumerate(ids):
        rows[r, : len(i) - 1] = torch.tensor(i[:-1])
    rows = rows.to(dev)
    ctx = Recorder(c, rows, n)
    net.forward(rows, ctx)
    here = slice(first, first + len(ids))
    for i in range(c.num_hidden_layers):
        state.ring[i][here] = ctx.kv[i]
    for i in c.kv_source_layer_ids:
        g = min(ctx.kc[i].shape[1], state.kc[i].shape[1])
        state.kc[i][here, :g], state.ik[i][here, :g] = ctx.kc[i][:, :g], ctx.ik[i][:, :g]
    for i, (k, g) in state.open.items():
        k[here], g[here] = ctx.open[i]
    m = c.engram_max_ngram_size - 1
    back = n.unsqueeze(1) - m + torch.arange(m, device=dev)
    old = net.cmap[rows.gather(1, back.clamp(min=0))]
    state.hist[here] = torch.where(back >= 0, old, torch.full_like(old, net.pad))
    state.at[here] = n


@torch.no_grad()
def decode(net, prompts, max_new, stops, chunk_tokens=65536):
    """prompts: lists of token ids (at least 2). Greedy. Returns [(new ids without the stop token, finished)]."""
    c, dev, B = net.c, net.cmap.device, len(prompts)
    longest = max(map(len, prompts)) + max_new
    length = min(-(-longest // c.sliding_window) * c.sliding_window, c.max_position_embeddings)
    state = Decoder(c, B, length, dev, net.dtype)
    i = 0
    while i < B:
        width = max(len(p) for p in prompts[i : i + 1])
        k = i + 1
        while k < B and max(width, len(prompts[k])) * (k - i + 1) <= chunk_tokens:
            width, k = max(width, len(prompts[k])), k + 1
        prefill(net, prompts[i:k], state, i)
        i = k
    token = torch.tensor([p[-1] for p in prompts], device=dev)
    done = torch.zeros(B, dtype=torch.bool, device=dev)
    out = torch.full((B, max_new), -1, dtype=torch.int64, device=dev)
    stop, count = torch.tensor(sorted(stops), device=dev), torch.zeros(1, dtype=torch.int64, device=dev)

    def step():
        state.begin()
        h = net.forward(token.unsqueeze(1), state)
        new = net.logits(h).argmax(-1)
        done.logical_or_(torch.isin(new, stop))
        out.scatter_(1, count.expand(B, 1), torch.where(done, -1, new).unsqueeze(1))
        token.copy_(torch.where(done, token, new))
        state.at.copy_(torch.minimum(state.at + 1, torch.full_like(state.at, length - 1)))
        count.add_(1)

    def keep():
        return [t.clone() for t in mutable]

    mutable = [state.at, state.hist, token, done, out, count, *state.ring.values(), *state.kc.values(), *state.ik.values(),
               *(t for pair in state.open.values() for t in pair)]
    if not dev.type == "cuda":
        run = step
    else:
        before = keep()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for t, b in zip(mutable, before):
            t.copy_(b)
        run = graph.replay
    for i in range(max_new):
        run()
        if i % 8 == 7 and bool(done.all()):
            break
    rows, ended = out.tolist(), done.tolist()
    return [([t for t in r if t >= 0], e) for r, e in zip(rows, ended)]
