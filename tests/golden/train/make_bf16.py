#!/usr/bin/env python3
"""Writes golden training runs of test_golden_train.c in float64 whose convolutions round both factors to bf16, forward and backward, as the
kernels cpu.conv_bf16, cpu.conv_dgrad_bf16 and cpu.conv_wgrad_bf16 do. golden.py says what is written.

    python3 tests/golden/train/make_bf16.py [NAME ...]        (PyTorch 2)
"""
import torch
from torch import nn
from torch.nn import grad

import golden
import margin
from golden import basic_b, blocks, cross_entropy, run, sgd


def rounded(x):
    return x.bfloat16().to(x.dtype)


class Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, stride, padding):
        ctx.save_for_backward(rounded(x), rounded(w))
        ctx.at = (stride, padding)
        return nn.functional.conv2d(rounded(x), rounded(w), None, stride, padding)

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dy = rounded(dy)
        return grad.conv2d_input(x.shape, w, dy, *ctx.at), grad.conv2d_weight(x, w.shape, dy, *ctx.at), None, None


margin.train = lambda name, model, steps: steps(model)  # factors that round to another neighbour move the weights further than a ReLU does
margin.first_batch = 1000
golden.STEPS = 1  # a number near the middle between two of bf16 is rounded to another one than in f32: later steps drift apart
nn.Conv2d.forward = lambda self, x: Convolution.apply(x, self.weight, self.stride, self.padding)

if __name__ == "__main__":
    run("bf16-basic", basic_b(), sgd(), cross_entropy(0.1), "basic-b")
    run("bf16-bottleneck", blocks.bottleneck((1, 2), (4, 6), blocks.shortcut_b), sgd(), cross_entropy(0.1), "bottleneck")
