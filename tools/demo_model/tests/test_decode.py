"""batched.py (packed prefill, then one token for all) against one cached sequence at a time, on a small random model."""

import os
import sys
import unittest

import numpy as np
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import batched  # noqa: E402
import model as M  # noqa: E402
import verify  # noqa: E402


class Decode(unittest.TestCase):
    @torch.no_grad()
    def test_same_tokens(self):
        c = verify.tiny_config()
        params, g = M.init_params(c, 1), torch.Generator().manual_seed(3)
        for k, v in params.items():
            params[k] = v + torch.randn(v.shape, generator=g) * (0.05 if "hc_" in k and "fn" in k else 0.15)
        net = M.Model(c, params, (np.arange(c.vocab_size) * 7) % c.engram_compressed_vocab_size)
        rng = np.random.default_rng(5)
        prompts = [rng.integers(3, c.vocab_size, n).tolist() for n in (2, 3, 8, 17, 30, 41)]
        got = batched.decode(net, prompts, 12, {1})
        for p, (out, _) in zip(prompts, got):
            ctx, want = M.Cached(c), []
            h = net.forward(torch.tensor([p]), ctx, last=1)
            while len(want) < 12:
                t = int(net.logits(h).argmax())
                if t == 1:
                    break
                want.append(t)
                h = net.forward(torch.tensor([[t]]), ctx, last=1)
            self.assertEqual(out, want, f"prompt of {len(p)} tokens")


if __name__ == "__main__":
    unittest.main()
