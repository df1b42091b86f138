#!/usr/bin/env python3
"""Writes ref_golden.safetensors: PyTorch's results in float64 for single ops, for test_ref_golden.c.

    python3 tests/golden/make_ref_golden.py tests/golden/ref_golden.safetensors

Made with PyTorch 1.13. Inputs are small multiples of 1/32, so that they are exact in float32 and in float64; they are
stored as F32, results as F64. Images are N,H,W,C and filters K,R,S,C, as in cresnet.
"""
import os
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import st

torch.manual_seed(20240501)
tensors = {}


def draw(*shape, low=-64, high=64):
    return torch.randint(low, high + 1, shape).double() / 32


def keep(name, value, result=True):
    value = torch.as_tensor(value).detach().clone()  # PyTorch clears gradients in place
    if value.dtype in (torch.int64, torch.int32):
        tensors[name] = value.to(torch.int32).contiguous()
    else:
        tensors[name] = (value.double() if result else value.float()).contiguous()


def given(name, value):
    keep(name, value, result=False)


def nhwc(t):
    return t.permute(0, 2, 3, 1)


def nchw(t):
    return t.permute(0, 3, 1, 2)


# name: N, H, W, C, K, R, stride, pad
CONVS = {
    "conv.3x3": (2, 7, 6, 3, 5, 3, 1, 1),
    "conv.3x3s2": (2, 9, 8, 4, 6, 3, 2, 1),
    "conv.7x7s2": (1, 11, 9, 3, 2, 7, 2, 3),
    "conv.1x1": (2, 5, 5, 6, 7, 1, 1, 0),
    "conv.1x1s2": (2, 6, 7, 5, 4, 1, 2, 0),
    "conv.5x5": (1, 8, 7, 2, 3, 5, 1, 2),
    "conv.wide": (1, 3, 3, 70, 2, 2, 1, 0),
    "conv.nopad": (1, 7, 7, 2, 2, 3, 3, 0),
}


# name: H, W, window, stride, pad
POOLS = {"pool.3s2": (9, 8, 3, 2, 1), "pool.2s2": (6, 6, 2, 2, 0), "pool.3s1": (5, 4, 3, 1, 1)}


def make_convs():
    for name, (n, h, w, c, k, r, stride, pad) in CONVS.items():
        x = draw(n, h, w, c).requires_grad_()
        f = draw(k, r, r, c).requires_grad_()
        y = nhwc(F.conv2d(nchw(x), nchw(f), stride=stride, padding=pad))
        dy = draw(*y.shape)
        y.backward(dy)
        keep(name + ".attr", torch.tensor([stride, pad]))
        given(name + ".x", x)
        given(name + ".w", f)
        given(name + ".dy", dy)
        keep(name + ".y", y)
        keep(name + ".dx", x.grad)
        keep(name + ".dw", f.grad)


def make_bn():
    """Two training batches, then evaluation: running statistics are updated twice."""
    n, h, w, c = 2, 3, 4, 18
    bn = torch.nn.BatchNorm2d(c, eps=2.0**-17, momentum=0.125).double().train()
    with torch.no_grad():
        bn.weight.copy_(draw(c))
        bn.bias.copy_(draw(c))
        bn.running_mean.copy_(draw(c))
        bn.running_var.copy_(draw(c, low=8))
    for name in ("weight", "bias", "running_mean", "running_var"):
        given("bn." + name, getattr(bn, name))
    for step in range(2):
        x = draw(n, h, w, c).requires_grad_()
        dy = draw(n, h, w, c)
        bn.zero_grad()
        y = bn(nchw(x))
        nhwc(y).backward(dy, retain_graph=True)
        name = "bn.%d." % step
        given(name + "x", x)
        given(name + "dy", dy)
        keep(name + "y", nhwc(y))
        keep(name + "dx", x.grad)
        keep(name + "dgamma", bn.weight.grad)
        keep(name + "dbeta", bn.bias.grad)
        keep(name + "running_mean", bn.running_mean)
        keep(name + "running_var", bn.running_var)
        x.grad = None
        bn.zero_grad()
        nhwc(F.relu(y)).backward(dy)
        keep(name + "relu.dx", x.grad)
        keep(name + "relu.dgamma", bn.weight.grad)
    bn.eval()
    x = draw(n, h, w, c)
    given("bn.eval.x", x)
    keep("bn.eval.y", nhwc(bn(nchw(x))))


def make_pools():
    for name, (h, w, window, stride, pad) in POOLS.items():
        # few distinct values: ties are common, and the first maximum must be chosen
        x = draw(2, h, w, 3, low=-2, high=2).requires_grad_()
        y = nhwc(F.max_pool2d(nchw(x), window, stride, pad))
        dy = draw(*y.shape)
        y.backward(dy)
        keep(name + ".attr", torch.tensor([window, stride, pad]))
        given(name + ".x", x)
        given(name + ".dy", dy)
        keep(name + ".y", y)
        keep(name + ".dx", x.grad)
    x = draw(3, 5, 4, 6).requires_grad_()
    y = nhwc(F.adaptive_avg_pool2d(nchw(x), 1))
    dy = draw(*y.shape)
    y.backward(dy)
    given("avgpool.x", x)
    given("avgpool.dy", dy)
    keep("avgpool.y", y)
    keep("avgpool.dx", x.grad)


def make_dense():
    x, w, b, dy = draw(5, 9).requires_grad_(), draw(7, 9).requires_grad_(), draw(7).requires_grad_(), draw(5, 7)
    y = F.linear(x, w, b)
    y.backward(dy)
    for name, value in (("x", x), ("w", w), ("b", b), ("dy", dy)):
        given("dense." + name, value)
    for name, value in (("y", y), ("dx", x.grad), ("dw", w.grad), ("db", b.grad)):
        keep("dense." + name, value)


make_convs()
make_bn()
make_pools()
make_dense()
st.save(sys.argv[1], {name: t.numpy() for name, t in tensors.items()})
