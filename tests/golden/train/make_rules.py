#!/usr/bin/env python3
"""Writes golden training runs of the other update rules, with moving averages, in float64, with the initial weights of make.py.

    python3 tests/golden/train/make_rules.py [NAME ...]        (Debian 12: python3-torch 1.13.1, python3-numpy; lamb: timm 1.0; muon: PyTorch 2.9)

The run dropped uses torchvision's stochastic_depth with the random numbers of core/rng.c. Some runs have mixed images and labels (the mixing records
of test_golden_train.c). AdamW and Muon are torch.optim's, LAMB timm's. LARS (You et al. 2017) and the
averages (as timm's ModelEmaV3: state dict, warm-up) are implemented here.
"""
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from golden import BATCH, CLASSES, SIZE, basic_b, batch, blocks, cross_entropy, decayed, normalised, run, samples, sgd


class Lars:
    """v = mu*v + r*(g + wd*w), w -= lr*v (Nesterov: lr*(r*(g + wd*w) + mu*v)); r = trust*|w| / (|g| + wd*|w| + eps) for matrices and
    filters, 1 for vectors and where a norm is 0."""

    def __init__(self, model, lr, mu, decay, trust, eps, nesterov):
        self.params, self.v = list(model.parameters()), {}
        self.lr, self.mu, self.decay, self.trust, self.eps, self.nesterov = lr, mu, decay, trust, eps, nesterov

    def step(self):
        for p in self.params:
            decay = self.decay if p.dim() > 1 else 0.0
            w, g, r = p.data.norm(), p.grad.norm(), 1.0
            if p.dim() > 1 and w > 0 and g > 0:
                r = self.trust * w / (g + decay * w + self.eps)
            u = r * (p.grad + decay * p.data)
            v = self.v[p] = self.mu * self.v.get(p, 0) + u
            p.data -= self.lr * (u + self.mu * v if self.nesterov else v)


class Muon:
    """Filters as matrices by torch.optim.Muon, whose matrices of bfloat16 are float64 here; all other parameters by AdamW."""

    def __init__(self, model, lr, momentum, decay):
        torch.Tensor.bfloat16 = torch.Tensor.double
        self.filters = [p for p in model.parameters() if p.dim() == 4]
        self.matrices = [nn.Parameter(p.data.view(len(p), -1)) for p in self.filters]
        weights = [p for p in model.parameters() if p.dim() == 2]
        vectors = [p for p in model.parameters() if p.dim() == 1]
        self.muon = torch.optim.Muon(self.matrices, lr=lr, weight_decay=decay, momentum=momentum, adjust_lr_fn="match_rms_adamw")
        self.others = torch.optim.AdamW([{"params": weights, "weight_decay": decay}, {"params": vectors, "weight_decay": 0}], lr=lr,
                                        betas=(momentum, 0.99), eps=1e-2)

    def step(self):
        for matrix, p in zip(self.matrices, self.filters):
            matrix.grad = p.grad.view(matrix.shape)
        self.muon.step()
        self.others.step()


class Averages:
    """A copy of the model with averages of weights and running statistics."""

    def __init__(self, model, decay, warmup):
        self.decay, self.warmup, self.model = decay, warmup, model
        self.mean = {k: v.clone() for k, v in model.state_dict().items()}

    def update(self, step, model):
        d = 0.0 if step == 0 else min(self.decay, 1 - (1 + step) ** (-2 / 3)) if self.warmup else self.decay
        for k, v in model.state_dict().items():
            if v.dtype == torch.float64:
                self.mean[k] = d * self.mean[k] + (1 - d) * v

    def end(self):
        self.model.load_state_dict(self.mean)
        return self.model


class StochasticAverages:
    """torch.optim.swa_utils: averages after every second step, and BN statistics of four other batches."""

    def __init__(self, model):
        self.average = torch.optim.swa_utils.AveragedModel(model)

    def update(self, step, model):
        if step % 2:
            self.average.update_parameters(model)

    def end(self):
        torch.optim.swa_utils.update_bn([batch(100 + i) for i in range(4)], self.average)
        return self.average.module


def mixed_batch(step):
    """The batch: a third of the images is blended with their partners, in a third a part of the partner is pasted, in a third a part is
    erased; as bytes, then normalised."""
    pixels, labels = samples(step)
    erased = pixels.astype(np.int64)
    for n in range(BATCH):
        if (n + step) % 3 == 2:
            erased[n, 2:7, 3:11] = (124, 116, 104)
    out, target = erased.copy(), torch.zeros(BATCH, CLASSES, dtype=torch.float64)
    for n in range(BATCH):
        partner, weight = BATCH - 1 - n, 65536
        if (n + step) % 3 == 0:
            weight = 20000 + 3000 * n
            out[n] = (weight * erased[n] + (65536 - weight) * erased[partner] + 32768) // 65536
        elif (n + step) % 3 == 1:
            y, x0 = n % 5, 3 * n % 7
            out[n, y:y + 9, x0:x0 + 6] = erased[partner, y:y + 9, x0:x0 + 6]
            weight = 65536 - 54 * 65536 // (SIZE * SIZE)
        target[n, labels[n]] += weight / 65536
        target[n, labels[partner]] += 1 - weight / 65536
    return normalised(out), target


DROP_RATE, DROPOUT_RATE = 0.5, 0.25


class Draws:
    """Random numbers of the op drop (graph/ops.def): Philox4x32-10, key seed and purpose 10, counter word/4, op, step."""

    def begin(self, step, first):
        self.step, self.first, self.op = step, first, 0

    def words(self, first, count):
        at = np.arange(first, first + count, dtype=np.uint64)
        low = np.uint64(0xFFFFFFFF)
        c = [at // 4, np.full_like(at, self.op), np.full_like(at, self.step), np.zeros_like(at)]
        k0, k1 = 1, 10 << 24
        self.op += 1
        for _ in range(10):
            a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
            c = [(b >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), b & low, (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), a & low]
            k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
        return np.choose((at % 4).astype(int), c)

    def keep(self, elements, images, rate):
        words = self.words(self.first * elements, images * elements)
        return torch.from_numpy((words >= np.uint64(rate * 2**32)).astype(np.float64))


draws = Draws()


class DropBasic(blocks.Basic):
    rate = 0.0

    def forward(self, x):
        from torchvision.ops import stochastic_depth
        return F.relu(stochastic_depth(self.branch(x), self.rate, "row", self.training) + self.downsample(x))


class DropNet(blocks.Net):
    def __init__(self, depths, widths):
        super().__init__("cifar", lambda *args: DropBasic(*args, blocks.shortcut_b), depths, widths)
        dropped = [m for m in self.modules() if isinstance(m, DropBasic)]
        for i, block in enumerate(dropped):  # as in timm's ResNet and torchvision's ConvNeXt
            block.rate = DROP_RATE * i / (len(dropped) - 1)
        torch.Tensor.bernoulli_ = lambda noise, p: noise.copy_(draws.keep(1, len(noise), 1 - p).reshape(noise.shape))
        self.fc.register_forward_pre_hook(
            lambda m, x: x[0] * draws.keep(x[0].shape[1], len(x[0]), DROPOUT_RATE).reshape(x[0].shape).to(x[0].dtype) / (1 - DROPOUT_RATE))


def binary(smoothing, threshold):
    """timm's BinaryCrossEntropy of smoothed targets (timm 1.0: loss/binary_cross_entropy.py, and mixup_target)."""
    def loss(model, x, target):
        if target.dim() == 1:
            target = F.one_hot(target, CLASSES).double()
        target = target * (1 - smoothing) + smoothing / CLASSES
        if threshold:
            target = target.gt(threshold).double()
        return F.binary_cross_entropy_with_logits(model(x), target)
    return loss


def rule(name, make_optimizer, loss, decay=0.7, warmup=True, start="basic-b", model=None, **more):
    """A run with another rule, and with moving averages unless the decay is 0."""
    averages = (lambda model: Averages(model, decay, warmup)) if decay else None
    run(name, model or basic_b(), make_optimizer, loss, start, after=averages, **more)


def adamw(model):
    return torch.optim.AdamW(decayed(model, 0.05), lr=0.004, betas=(0.9, 0.99), eps=1e-2)


def lamb(model):
    """Clips the gradients to a norm of 0.5 itself."""
    from timm.optim import Lamb
    return Lamb(decayed(model, 0.05), lr=0.01, betas=(0.9, 0.99), eps=1e-2, max_grad_norm=0.5)


def layer_of(name, blocks):
    """As timm's group_parameters: the stem is 0, then the blocks, then the classifier."""
    if name.startswith("fc"):
        return len(blocks) + 1
    return 1 + blocks.index(".".join(name.split(".")[:2])) if name.startswith("layer") else 0


def groups(model, lr, layer_decay, head_lr, weight_decay):
    """A parameter group for each parameter: lr * layer_decay^(layers between it and the classifier); the classifier has head_lr."""
    blocks = list(dict.fromkeys(".".join(n.split(".")[:2]) for n, _ in model.named_parameters() if n.startswith("layer")))
    return [{"params": [p], "weight_decay": weight_decay if p.dim() > 1 else 0,
             "lr": head_lr if n.startswith("fc") else lr * layer_decay ** (len(blocks) + 1 - layer_of(n, blocks))}
            for n, p in model.named_parameters()]


if __name__ == "__main__":
    smooth, plain = cross_entropy(0.1), cross_entropy()
    small = blocks.basic((1, 1), (5, 7), blocks.shortcut_b)
    rule("adamw", adamw, smooth, clip=0.5)
    rule("mixed", sgd(nesterov=False, decay_all=True), smooth, warmup=False, batch=mixed_batch)
    rule("bce", adamw, binary(0.1, 0), decay=0)
    rule("bce-mixed", sgd(nesterov=False, decay_all=True), binary(0.1, 0.2), decay=0, batch=mixed_batch)
    rule("lars", lambda m: Lars(m, 2.0, 0.9, 0.01, 0.01, 1e-8, True), plain, 0.8, False, "accumulate", small, accumulate=3)
    rule("rates-sgd", lambda m: torch.optim.SGD(groups(m, 0.05, 0.7, 0.2, 0.01), lr=0.05, momentum=0.9, nesterov=True), smooth, clip=0.5)
    rule("rates-adamw", lambda m: torch.optim.AdamW(groups(m, 0.004, 0.6, 0.01, 0.05), lr=0.004, betas=(0.9, 0.99), eps=1e-2), smooth)
    rule("lamb", lamb, smooth)
    rule("muon", lambda m: Muon(m, 0.01, 0.9, 0.05), smooth, clip=0.5)
    rule("dropped", sgd(), plain, model=DropNet((2, 1), (6, 10)), accumulate=2, begin=lambda step, micro: draws.begin(step, micro * BATCH))
    run("swa", basic_b(), sgd(), plain, "basic-b", after=StochasticAverages)
