#!/usr/bin/env python3
"""One training step in PyTorch, as a peer for `cleave train --mock-data`: the same shapes, fp32, AdamW, clipping.

Prints one JSON object a step: {"step", "seconds", "tokens_per_second", "loss", "peak_memory_bytes"}.
"""
import argparse
import json
import math
import resource
import time

import torch
import torch.nn.functional as F
from torch import nn


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--arch", choices=["gpt2", "llama"], default="gpt2")
    for name, preset in dict(layers=12, hidden=768, heads=12, kv_heads=0, ffn=0, vocab=50304, seq=1024, batch=1,
                             steps=5, threads=2).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=preset)
    a = p.parse_args()
    a.kv_heads = a.kv_heads or a.heads
    a.ffn = a.ffn or (4 * a.hidden if a.arch == "gpt2" else 8 * a.hidden // 3 // 64 * 64)
    return a


class RMSNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.gain


def attention(q, k, v, mask):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v


class Layer(nn.Module):
    def __init__(self, a):
        super().__init__()
        gpt = a.arch == "gpt2"
        norm = nn.LayerNorm if gpt else RMSNorm
        d = a.hidden // a.heads
        self.a, self.d, self.gpt = a, d, gpt
        self.norm1, self.norm2 = norm(a.hidden), norm(a.hidden)
        self.qkv = nn.Linear(a.hidden, (a.heads + 2 * a.kv_heads) * d, bias=gpt)
        self.out = nn.Linear(a.heads * d, a.hidden, bias=gpt)
        self.up = nn.Linear(a.hidden, a.ffn if gpt else 2 * a.ffn, bias=gpt)
        self.down = nn.Linear(a.ffn, a.hidden, bias=gpt)

    def forward(self, x, mask, turn):
        a, d = self.a, self.d
        b, s, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).split([a.heads * d, a.kv_heads * d, a.kv_heads * d], -1)
        q, k, v = (t.view(b, s, -1, d).transpose(1, 2) for t in (q, k, v))
        if not self.gpt:
            half = lambda t: torch.cat([-t[..., d // 2:], t[..., :d // 2]], -1)
            q, k = (t * turn[0] + half(t) * turn[1] for t in (q, k))
        if a.kv_heads != a.heads:
            k, v = (t.repeat_interleave(a.heads // a.kv_heads, 1) for t in (k, v))
        x = x + self.out(attention(q, k, v, mask).transpose(1, 2).reshape(b, s, -1))
        u = self.up(self.norm2(x))
        if self.gpt:
            return x + self.down(F.gelu(u, approximate="tanh"))
        gate, up = u.chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = a
        self.word = nn.Embedding(a.vocab, a.hidden)
        self.position = nn.Embedding(a.seq, a.hidden) if a.arch == "gpt2" else None
        self.layers = nn.ModuleList(Layer(a) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.hidden) if a.arch == "gpt2" else RMSNorm(a.hidden)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        a, s = self.a, tokens.shape[1]
        x = self.word(tokens)
        if self.position is not None:
            x = x + self.position(torch.arange(s))
        d = a.hidden // a.heads
        angle = torch.outer(torch.arange(s).float(), 10000.0 ** (-torch.arange(0, d, 2).float() / d))
        angle = torch.cat([angle, angle], -1)
        mask = torch.ones(s, s, dtype=torch.bool).triu(1)
        for layer in self.layers:
            x = layer(x, mask, (angle.cos(), angle.sin()))
        logits = F.linear(self.norm(x), self.word.weight)
        return F.cross_entropy(logits.view(-1, a.vocab), targets.reshape(-1))


def main():
    a = arguments()
    torch.manual_seed(0)
    torch.set_num_threads(a.threads)
    model = Model(a)
    try:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    except (RuntimeError, TypeError):  # older versions fuse on GPUs only
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(a.steps):
        tokens = torch.randint(0, a.vocab, (a.batch, a.seq + 1))
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds = time.perf_counter() - start
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"step": step, "seconds": seconds, "tokens_per_second": a.batch * a.seq / seconds,
                          "loss": loss.item(), "peak_memory_bytes": memory}), flush=True)


if __name__ == "__main__":
    main()
