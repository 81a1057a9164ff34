"""Trains the demo model on one or more CUDA GPUs (bf16, CUDA graphs, data parallel) for a given time.

    python3 train.py --seconds 480 --gpus 2 --out RUN [--resume DIR]        CPU smoke test: --cpu --seconds 20

Steps on rows of 1,024 tokens (everything but long recall) alternate with steps on rows of 8,192 tokens (recall of up to
a full window). Selection starts wide open (dense attention) and narrows to the configured top-k between --open and
--narrow, so that the loss never jumps; the learning rate is constant up to --decay-from and then falls to zero, so the
narrow selection and the long rows see most of it. Weight noise prepares for 3-bit quantisation.
"""

import argparse
import json
import math
import multiprocessing as mp
import os
import subprocess
import sys
import time
import traceback
from queue import Full

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import checkpoint
import conversations as C
import gradcheck
import model as M
import optimiser as O
import packing
import tokenizer as TK

SHORT, LONG = 1024, 8192
BALANCE = 0.02                 # weight of the router's load-balancing loss


def worker(queue, tok_path, seed, rows, length):
    """Fills the queue with batches (arrays of packing.Packer.batch) until the trainer is gone."""
    packer, parent = packing.Packer(TK.Tokenizer(tok_path), seed, length), os.getppid()
    while True:
        try:
            batch = packer.batch(rows)
        except Exception:                                   # one bad draw must not starve the trainer
            traceback.print_exc()
            continue
        while True:
            if os.getppid() != parent:
                os._exit(0)
            try:
                queue.put(batch, timeout=2)
                break
            except Full:
                pass


def start_workers(tok_path, rows, length, count, seed):
    ctx = mp.get_context("fork")
    q = ctx.Queue(maxsize=24)
    for i in range(count):
        ctx.Process(target=worker, args=(q, tok_path, seed + i, rows, length), daemon=True).start()
    return q


@M.fast
def token_nll(logits, target):
    """[N, V], [N] -> negative log likelihood and whether the argmax is right."""
    logits = logits.float()
    nll = torch.logsumexp(logits, -1) - logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return nll, (logits.argmax(-1) == target).float()


class Step:
    """One optimisation step on `rows` rows of T tokens. On a GPU: a graph up to the flat gradient, the all-reduce, a
    graph for the update."""

    def __init__(self, net, opt, rows, T, graph, world):
        dev = net.cmap.device
        self.net, self.opt, self.world, self.graph = net, opt, world, graph
        self.ids, self.kind, self.start = (torch.zeros(rows, T, dtype=torch.int64, device=dev) for _ in range(3))
        self.weight = torch.tensor(packing.WEIGHTS, device=dev)
        self.sub = 16 if T == LONG else 24                              # queries of each block that train the indexer
        self.tasks = torch.zeros(len(packing.WEIGHTS), 3, device=dev)    # tokens, sum of nll, right: of this step
        self.total = torch.zeros_like(self.tasks)                       # the same, since the last report
        self.aux = torch.zeros(2, device=dev)                           # indexer loss, worst expert load
        self.share = torch.zeros(net.c.num_hidden_layers, net.c.n_routed_experts, device=dev)
        self.graphs = None

    def gradients(self):
        net, opt, c = self.net, self.opt, self.net.c
        opt.refresh()
        for p in opt.params.values():
            p.grad = None
        rows, T = self.ids.shape
        output = (self.kind >= packing.FIRST_OUTPUT).float()
        importance = torch.where(self.kind == 0, 0.01, 0.15) + output
        block = F.pad(importance[:, 1:], (0, 1)).view(rows, -1, c.sliding_window)     # a query predicts the next token
        sub = torch.topk((block > 1).float() + torch.rand_like(block), self.sub)[1]
        ctx = M.Packed(c, self.ids, self.start, sub, F.pad(importance[:, 1:], (0, 1)))
        h = net.forward(self.ids, ctx)
        target = F.pad(self.ids[:, 1:], (0, 1)).flatten()
        kind = F.pad(self.kind[:, 1:], (0, 1)).flatten()
        nll, right = token_nll(net.lin(h, "head.weight"), target)
        w = self.weight[kind]
        aux = torch.stack(net.aux).mean()
        ((nll * w).sum() / (w.sum() + 1e-6) + aux + BALANCE * torch.stack(net.balance).mean()).backward()
        opt.gather()
        with torch.no_grad():
            self.tasks.zero_().index_add_(0, kind, torch.stack((torch.ones_like(nll), nll, right), -1))
            self.total += self.tasks
            self.share.copy_(torch.stack([net.load[i] for i in range(c.num_hidden_layers)]))
            self.aux.copy_(torch.stack((aux, self.share.max())))

    def update(self):
        self.opt.update()
        c = self.net.c
        with torch.no_grad():
            for layer in range(c.num_hidden_layers):
                want = c.num_experts_per_tok / c.n_routed_experts
                self.opt.params[f"layers.{layer}.ffn.gate.bias"].add_(self.opt.hyper[4] * (want - self.share[layer]))

    def reduce(self):
        if self.world > 1:
            for t in (self.opt.flat, self.share):
                dist.all_reduce(t)
                t.div_(self.world)

    def plain(self):
        self.gradients()
        self.reduce()
        self.update()

    def run(self, batch):
        host = [torch.from_numpy(x.astype(np.int64)) for x in batch]
        for to, x in zip((self.ids, self.kind, self.start), host):
            to.copy_(x.pin_memory() if to.is_cuda else x, non_blocking=True)
        if not self.graph:
            return self.plain()
        if self.graphs is None:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self.plain()
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            for p in self.opt.params.values():
                p.grad = None
            torch.cuda.empty_cache()
            self.graphs = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[0], capture_error_mode="thread_local"):
                self.gradients()
            with torch.cuda.graph(self.graphs[1], capture_error_mode="thread_local"):
                self.update()
        self.graphs[0].replay()
        self.reduce()
        self.graphs[1].replay()

    def report(self):
        """Means since the last report, over all ranks: {task: [nll, right]}, indexer loss, worst load."""
        if self.world > 1:
            dist.all_reduce(self.total)
        t = self.total.tolist()
        self.total.zero_()
        tasks = {n: [round(t[i][1] / t[i][0], 4), round(t[i][2] / t[i][0], 4)] for i, n in enumerate(packing.KINDS) if t[i][0]}
        out = t[packing.FIRST_OUTPUT:]
        loss = sum(r[1] for r in out) / max(1.0, sum(r[0] for r in out))
        return dict(loss=round(loss, 4), aux=round(float(self.aux[0]), 4), load=round(float(self.aux[1]), 3), tasks=tasks)


class Guard:
    """Goes back to the last good state when the loss has been far above its mean for two reports in a row; gives up after
    MAX_ROLLBACKS, because a run that keeps diverging wastes the machine. The mean may rise by 5% a report at most, so that
    a slow divergence cannot drag it along."""

    MAX_ROLLBACKS = 3

    def __init__(self, opt):
        self.opt, self.mean, self.bad, self.good, self.scale, self.rollbacks = opt, None, 0, None, 1.0, 0

    def see(self, loss, may_rise):
        """loss: mean of a report on short rows. may_rise: the schedule is narrowing the selection. True: rolled back."""
        self.bad = self.bad + 1 if self.mean is not None and not may_rise and not loss < 1.3 * self.mean + 0.03 else 0
        if self.bad >= 2 or not math.isfinite(loss):
            for t, g in zip(self.opt.state(), self.good or []):
                t.copy_(g)
            self.bad, self.scale, self.rollbacks = 0, self.scale * 0.4, self.rollbacks + 1
            return True
        if not self.bad:
            self.mean = loss if self.mean is None else min(0.5 * self.mean + 0.5 * loss, 1.05 * self.mean)
            state = self.opt.state()
            self.good = self.good or [t.clone() for t in state]
            for t, g in zip(state, self.good):
                g.copy_(t)
        return False


def schedule(x, a):
    """x: elapsed share. Returns (learning-rate factor, noise, groups, blocks)."""
    rate = a.peak * (1.0 if x < a.decay_from else max(a.decay_to, (1 - x) / (1 - a.decay_from)))
    noise = a.noise * min(1.0, max(0.0, (x - a.noise_from) / 0.2)) if a.noise_from < 1 else 0.0
    z = min(1.0, max(0.0, (x - a.open) / max(1e-6, a.narrow - a.open)))
    return rate, noise, z


def narrowed(z, wide, end):
    return int(round(wide * (end / wide) ** z))


def arguments():
    a = argparse.ArgumentParser()
    a.add_argument("--seconds", type=float, default=480)
    a.add_argument("--tok", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tok"))
    a.add_argument("--out", default="run")
    a.add_argument("--resume")
    a.add_argument("--cpu", action="store_true", help="tiny model, to test this script")
    a.add_argument("--gpus", type=int, default=1)
    a.add_argument("--no-compile", action="store_true")
    a.add_argument("--workers", type=int, default=13, help="data processes for each GPU")
    a.add_argument("--tokens", type=int, default=32768, help="tokens a step and GPU")
    a.add_argument("--peak", type=float, default=0.1, help="multiplies every learning rate")
    a.add_argument("--warmup", type=int, default=200, help="steps")
    a.add_argument("--decay-from", type=float, default=0.6)
    a.add_argument("--decay-to", type=float, default=0.0, help="share of the peak at the end")
    a.add_argument("--noise", type=float, default=0.12)
    a.add_argument("--noise-from", type=float, default=0.4)
    a.add_argument("--open", type=float, default=0.12, help="selection begins to narrow at this share of the time")
    a.add_argument("--narrow", type=float, default=0.3, help="selection is at the configured top-k from here")
    a.add_argument("--long-every", type=int, default=4, help="every n-th step uses long rows")
    a.add_argument("--long-from", type=float, default=0.04)
    a.add_argument("--mix", default="", help="task shares, for example math=.3,recall=.12 (others keep their default)")
    a.add_argument("--seed", type=int, default=1000)
    a.add_argument("--max-steps", type=int, default=10 ** 9)
    a.add_argument("--check", action="store_true", help="first compare the kernels and the gradient of the fast path with plain code")
    a.add_argument("--profile", help="file for a table of kernel times")
    return a.parse_args()


def spawn(gpus):
    """One process a GPU; returns the worst exit code."""
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", WORLD_SIZE=str(gpus))
    jobs = [subprocess.Popen([sys.executable, *sys.argv], env=dict(env, RANK=str(r))) for r in range(gpus)]
    codes = []
    while len(codes) < gpus:
        codes = [j.poll() for j in jobs if j.poll() is not None]
        if any(codes):
            for j in jobs:
                j.kill()
            break
        time.sleep(0.2)
    return max([j.wait() for j in jobs], key=abs)


def profile(steps, get, path):
    from torch.profiler import ProfilerActivity
    with open(path, "w") as f:
        for name, s in steps.items():
            batch = get(name)
            s.run(batch)
            torch.cuda.synchronize()
            t0 = time.time()
            for _ in range(3):
                s.run(batch)
            torch.cuda.synchronize()
            f.write(f"{name}: {(time.time() - t0) / 3 * 1e3:.1f} ms a step of {s.ids.numel()} tokens\n")
            with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as p:
                s.run(batch)
                torch.cuda.synchronize()
            f.write(p.key_averages().table(sort_by="cuda_time_total", row_limit=45, max_name_column_width=110) + "\n")


def main():
    args = arguments()
    if args.gpus > 1 and "RANK" not in os.environ:
        sys.exit(spawn(args.gpus))
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    begin = time.time()
    tok_path = os.path.join(args.tok, "tokenizer.json")
    tok = TK.Tokenizer(tok_path)
    lengths = dict(short=256, long=512) if args.cpu else dict(short=SHORT, long=LONG)
    if args.cpu:
        args.tokens, args.workers = 1024, 2
    C.TASKS.update((k, float(v)) for k, v in (p.split("=") for p in args.mix.split(",") if p))
    many, seed = max(1, args.workers // 3), args.seed + 100000 * rank
    queues = dict(short=start_workers(tok_path, args.tokens // lengths["short"], lengths["short"], args.workers - many, seed),
                  long=start_workers(tok_path, args.tokens // lengths["long"], lengths["long"], many, seed + 500))
    dev = torch.device("cpu") if args.cpu else torch.device("cuda", rank)
    half = torch.float32 if args.cpu else torch.bfloat16
    if not args.cpu:
        torch.cuda.set_device(dev)
    control = None
    if world > 1:
        dist.init_process_group("gloo" if args.cpu else "nccl", rank=rank, world_size=world)
        control = dist.new_group(backend="gloo")
    torch.manual_seed(args.seed + rank)
    cmap = tok.compressed_ids()
    c = M.Config(vocab_size=tok.size, engram_compressed_vocab_size=max(cmap) + 1)
    if args.cpu:
        c = M.Config(vocab_size=tok.size, engram_compressed_vocab_size=max(cmap) + 1, hidden_size=128, n_routed_experts=4,
                     q_lora_rank=32, head_dim=32, qk_rope_head_dim=16, index_head_dim=32, o_lora_rank=32, engram_vocab_size=100)
    master = checkpoint.load(args.resume) if args.resume else M.init_params(c)
    opt = O.Optimiser(c, master, dev, half)
    net = M.Model(c, opt.params, cmap)
    say = (lambda *t: print(*t, flush=True)) if rank == 0 else (lambda *t: None)
    say(f"parameters {sum(p.numel() for p in opt.params.values()) / 1e6:.2f} M, {world} processes")
    if not args.cpu:
        torch.backends.cuda.matmul.allow_tf32 = True
        import kernels
        plain = dict(M.FAST)
        if args.check:
            kernels.self_check(dev)
        kernels.install()
        if not args.no_compile:
            import torch._dynamo as dynamo
            dynamo.config.recompile_limit = 64
            for k, f in list(M.FAST.items()):
                M.FAST[k] = torch.compile(f, dynamic=False)
    if args.check and not args.cpu:
        gradcheck.run(c, master, cmap, queues["short"].get(timeout=60), plain, say)
    steps = {k: Step(net, opt, args.tokens // T, T, not args.cpu, world) for k, T in lengths.items()}
    guard, log, n, tokens, waited = Guard(opt), [], 0, 0, 0.0
    last, x, saved, ready = (time.time(), 0), 0.0, time.time(), None
    while n < args.max_steps:
        if n == 2:                                          # both kinds of step are compiled and captured
            float(opt.norm[0])
            ready = time.time()
            say(f"ready after {ready - begin:.0f} s")
        if n and n % 10 == 0:                               # every process follows the clock of the first
            x = (time.time() - ready) / max(1.0, begin + args.seconds - ready)
            if world > 1:
                t = torch.tensor([x])
                dist.broadcast(t, 0, group=control)
                x = float(t)
            if x >= 1:
                break
        rate, noise, z = schedule(x, args)
        rate *= min(1.0, (n + 1) / args.warmup) * guard.scale
        opt.hyper.copy_(torch.tensor([rate, noise, 1 / (1 - O.ADAM_B1 ** (n + 1)), 1 / (1 - O.ADAM_B2 ** (n + 1)), 0.03 * rate]))
        net.limits.copy_(torch.tensor([narrowed(z, LONG, c.index_topk),
                                       narrowed(z, LONG // c.candidate_block_size, c.candidate_topk_blocks)]))
        name = "long" if n == 1 or x >= args.long_from and n % args.long_every == args.long_every - 1 else "short"
        t0 = time.time()
        batch = queues[name].get(timeout=60)
        waited += time.time() - t0
        steps[name].run(batch)
        n, tokens = n + 1, tokens + args.tokens * world
        if n == 20 or n % 50 == 0:
            entry = dict(step=n, tokens=tokens, seconds=round(time.time() - begin, 1), rate=round(rate, 4), noise=round(noise, 3),
                         groups=int(net.limits[0]), norm=round(float(opt.norm[0]), 3), waited=round(waited, 1))
            entry["short"] = steps["short"].report()
            if n % 100 == 0 and x >= args.long_from:
                entry["long"] = steps["long"].report()
            now = time.time()
            entry["tokens_per_s"] = int((tokens - last[1]) / max(1e-9, now - last[0]))
            last = (now, tokens)
            log.append(entry)
            if n % 100 == 0 or n == 20:
                say(json.dumps(entry))
            if n >= 200 and guard.see(entry["short"]["loss"], 0 < z < 1):
                say(f"step {n}: loss {entry['short']['loss']} against {guard.mean}; rolled back, rate x {guard.scale:.2f}")
                if guard.rollbacks > guard.MAX_ROLLBACKS:
                    say("given up: the run keeps diverging")
                    break
            if world > 1 and n % 200 == 0:                  # the processes compute the same; keep it bit-equal
                for t in opt.state():
                    dist.broadcast(t, 0)
        if rank == 0 and time.time() - saved > 100 and not args.cpu:
            saved = time.time()
            checkpoint.save(opt.masters(), opt.kinds, args.out, dict(log=log))
    if rank == 0:
        checkpoint.save(opt.masters(), opt.kinds, args.out,
                        dict(log=log, tokens=tokens, steps=n, seconds=time.time() - begin, args=vars(args)))
    if args.profile and not args.cpu:
        opt.hyper.zero_()
        if rank == 0:
            steps["short"].world = steps["long"].world = 1
            profile(steps, lambda k: queues[k].get(), args.profile)
        if world > 1:
            dist.barrier(group=control)
    if not args.cpu:
        say(f"peak memory {torch.cuda.max_memory_allocated() / 2 ** 30:.1f} GiB")
    say(f"done: {n} steps, {tokens / 1e6:.1f} M tokens, {time.time() - begin:.0f} s")
    os._exit(0)


if __name__ == "__main__":
    main()
