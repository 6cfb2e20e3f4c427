#!/usr/bin/env python3
"""Kernels in PyTorch, as a peer for bench_op: the same shapes, fp32, the same number of threads.

Says its name, then answers each kernel's name, a line on stdin, with the seconds of its fastest run; 0 where PyTorch
has no such kernel. Backward passes are timed alone, the gradients given to autograd beforehand.
"""
import argparse
import math
import sys
import time

import torch
import torch.nn.functional as F

H, N, D, FFN, V = 768, 12, 64, 3072, 50304


def parameter(*shape):
    return (torch.rand(*shape) * 2 - 1).requires_grad_()


def constant(*shape):
    return torch.rand(*shape) * 2 - 1


def backward(y, inputs):
    dy = torch.ones_like(y)
    return lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True)


def attend(q, k, v, causal=True):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    return scores.softmax(-1) @ v


def rms(x, gain):
    if hasattr(F, "rms_norm"):
        return F.rms_norm(x, (H,), gain, 1e-5)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * gain


def swiglu(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def linear(m, n, k, bias=False):
    x, w, b = constant(m, k), constant(n, k), constant(n) if bias else None
    return lambda: F.linear(x, w, b)


def gradient_of_weights(s, n, k):
    dy, x, dw = constant(s, n), constant(s, k), constant(n, k)
    return lambda: dw.addmm_(dy.t(), x)


def product(m, n, k):
    a, b = constant(m, k), constant(k, n)
    return lambda: a @ b


def attention(s, back):
    q, k, v = (parameter(1, N, s, D) for _ in range(3))
    if back:
        return backward(attend(q, k, v), (q, k, v))
    return lambda: attend(q, k, v)


def one_query(s):
    q, k, v = constant(1, N, 1, D), constant(1, N, s, D), constant(1, N, s, D)
    return lambda: attend(q, k, v, False)


def norm(s, of, back):
    x, g, b = parameter(s, H), parameter(H), parameter(H)
    call = (lambda: F.layer_norm(x, (H,), g, b)) if of == "layer" else (lambda: rms(x, g))
    return backward(call(), (x, g, b) if of == "layer" else (x, g)) if back else call


def activation(s, act, back, width=FFN):
    x = parameter(s, width)
    return backward(act(x), (x,)) if back else lambda: act(x)


def embed(s, back):
    w, ids = parameter(V, H), torch.arange(s) * 7919 % V
    return backward(F.embedding(ids, w), (w,)) if back else lambda: F.embedding(ids, w)


def cross_entropy(s):
    logits, target = parameter(s, V), torch.arange(s) * 7919 % (V)
    return lambda: torch.autograd.grad(F.cross_entropy(logits, target, reduction="sum"), (logits,))


def head(s):
    x, g, b, w = parameter(s, H), parameter(H), parameter(H), parameter(V, H)
    target = torch.arange(s) * 7919 % (V)
    return lambda: torch.autograd.grad(
        F.cross_entropy(F.linear(F.layer_norm(x, (H,), g, b), w), target, reduction="sum"), (x, g, b, w))


def adamw(s):
    w = parameter(32 * s, H)
    w.grad = constant(32 * s, H)
    try:
        return torch.optim.AdamW([w], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True).step
    except (RuntimeError, TypeError):  # older versions fuse on GPUs only
        return torch.optim.AdamW([w], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1).step


def pair(s, call):
    x, y = constant(s, H), constant(s, H)
    return lambda: call(x, y)


def cases(s):
    erf, tanh = F.gelu, lambda x: F.gelu(x, approximate="tanh")
    bias = constant(H)
    return {
        "qkv  x W^T + b": lambda: linear(s, 3 * H, H, True),
        "proj x W^T": lambda: linear(s, H, H),
        "fc1  x W^T + b": lambda: linear(s, FFN, H, True),
        "fc2  x W^T": lambda: linear(s, H, FFN),
        "head x W^T": lambda: linear(s, V, H),
        "fc1  dy W": lambda: product(s, H, FFN),
        "fc1  += dy^T x": lambda: gradient_of_weights(s, FFN, H),
        "proj += dy^T x": lambda: gradient_of_weights(s, H, H),
        "fc1, 64 tokens": lambda: linear(min(s, 64), FFN, H),
        "fc1, 8 tokens": lambda: linear(min(s, 8), FFN, H),
        "fc1, 1 token": lambda: linear(1, FFN, H),
        "head with loss": lambda: head(s),
        "attention": lambda: attention(s, False),
        "attention backward": lambda: attention(s, True),
        "attention, 1 query": lambda: one_query(s),
        "layernorm": lambda: norm(s, "layer", False),
        "layernorm backward": lambda: norm(s, "layer", True),
        "rmsnorm": lambda: norm(s, "rms", False),
        "rmsnorm backward": lambda: norm(s, "rms", True),
        "gelu": lambda: activation(s, erf, False),
        "gelu backward": lambda: activation(s, erf, True),
        "gelu tanh": lambda: activation(s, tanh, False),
        "gelu tanh backward": lambda: activation(s, tanh, True),
        "swiglu": lambda: activation(s, swiglu, False, 2 * FFN),
        "swiglu backward": lambda: activation(s, swiglu, True, 2 * FFN),
        "residual + bias": lambda: pair(s, lambda x, y: x + (y + bias)),
        "residual, dropout": lambda: pair(s, lambda x, y: x + F.dropout(y + bias, 0.1)),
        "column sums": lambda: (lambda x: lambda: x.sum(0))(constant(s, FFN)),
        "embed": lambda: embed(s, False),
        "embed backward": lambda: embed(s, True),
        "cross entropy": lambda: cross_entropy(s),
        "adamw": lambda: adamw(s),
        "sum of squares": lambda: pair(32 * s, lambda x, y: torch.linalg.vector_norm(x)),
        "add": lambda: pair(32 * s, lambda x, y: x.add_(y)),
        "to bf16": lambda: pair(32 * s, lambda x, y: x.to(torch.bfloat16)),
    }


def fastest(make, runs):
    call, best = make(), math.inf
    call()
    for _ in range(runs):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def main():
    p = argparse.ArgumentParser()
    for name, preset in dict(threads=2, tokens=1024, runs=15).items():
        p.add_argument("--" + name, type=int, default=preset)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    table = cases(a.tokens)
    print("PyTorch " + torch.__version__.split("+")[0], flush=True)
    for line in sys.stdin:
        make = table.get(line.rstrip("\n"))
        print(fastest(make, a.runs) if make else 0, flush=True)


if __name__ == "__main__":
    main()
