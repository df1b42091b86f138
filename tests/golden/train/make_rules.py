#!/usr/bin/env python3
"""Writes golden training runs of the other update rules, with moving averages, in float64, like make.py, with its initial weights.

    python3 tests/golden/train/make_rules.py [NAME ...]        (Debian 12: python3-torch 1.13.1, python3-numpy; lamb: timm 1.0; muon: PyTorch 2.9)

The run dropped uses torchvision's stochastic_depth with the random numbers of core/rng.c. One run has mixed images and labels (the mixing records of test_golden_train.c). AdamW and Muon are torch.optim's, LAMB timm's. LARS (You et al. 2017) and the
averages (as timm's ModelEmaV3: state dict, warm-up) are implemented here.
"""
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import margin
from make import BATCH, CLASSES, SIZE, STEPS, Basic, Net, batch, here, st, state

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def load(model, start):
    weights = st.load(os.path.join(here, f"start-{start}.safetensors"))[0]
    model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in weights.items()}, strict=False)
    return model.double()


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
    def __init__(self, model, decay, warmup):
        self.decay, self.warmup, self.updates = decay, warmup, 0
        self.mean = {k: v.clone() for k, v in model.state_dict().items()}

    def update(self, model):
        n = max(0, self.updates)  # updates before this one
        self.updates += 1
        d = 0.0 if n == 0 else min(self.decay, 1 - (1 + n) ** (-2 / 3)) if self.warmup else self.decay
        for k, v in model.state_dict().items():
            if v.dtype == torch.float64:
                self.mean[k] = d * self.mean[k] + (1 - d) * v


def mixed_batch(step):
    """The batch: a third of the images is blended with their partners, in a third a part of the partner is pasted, in a third a part is
    erased; as bytes, then normalised."""
    x, labels = batch(step)
    pixels = np.rint((x.permute(0, 2, 3, 1).numpy() * STD + MEAN) * 255).astype(np.int64)
    erased = pixels.copy()
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
    image = torch.from_numpy((out / 255 - MEAN) / STD)
    return image.permute(0, 3, 1, 2), target


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


class DropBasic(Basic):
    rate = 0.0

    def forward(self, x):
        from torchvision.ops import stochastic_depth
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        y = stochastic_depth(y, self.rate, "row", self.training)
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class DropNet(Net):
    def __init__(self, *args):
        super().__init__(*args)
        blocks = [m for m in self.modules() if isinstance(m, DropBasic)]
        for i, block in enumerate(blocks):  # as in timm's ResNet and torchvision's ConvNeXt
            block.rate = DROP_RATE * i / (len(blocks) - 1)
        torch.Tensor.bernoulli_ = lambda noise, p: noise.copy_(draws.keep(1, len(noise), 1 - p).reshape(noise.shape))
        self.head, self.fc = self.fc, nn.Identity()

    def forward(self, x):
        x = super().forward(x)
        x = x * draws.keep(x.shape[1], len(x), DROPOUT_RATE).reshape(x.shape).to(x.dtype) / (1 - DROPOUT_RATE)
        return self.head(x)

    def load_state_dict(self, state, strict=True):
        return super().load_state_dict({k.replace("fc.", "head."): v for k, v in state.items()}, strict)

    def state_dict(self, *args, **kwargs):
        return {k.replace("head.", "fc."): v for k, v in super().state_dict(*args, **kwargs).items()}


def binary(threshold):
    """timm's BinaryCrossEntropy of smoothed targets (timm 1.0: loss/binary_cross_entropy.py, and mixup_target)."""
    def loss(logits, target, label_smoothing):
        if target.dim() == 1:
            target = F.one_hot(target, CLASSES).double()
        target = target * (1 - label_smoothing) + label_smoothing / CLASSES
        if threshold:
            target = target.gt(threshold).double()
        return F.binary_cross_entropy_with_logits(logits, target)
    return loss


def run(name, start, model, make, smoothing, clip, accumulate, decay, warmup, batch=batch, criterion=F.cross_entropy):
    if len(sys.argv) > 1 and name not in sys.argv[1:]:
        return
    def steps(model):
        opt, averages, losses = make(model), Averages(model, decay, warmup), []
        for step in range(STEPS):
            model.zero_grad()
            total = 0.0
            for micro in range(accumulate):
                x, y = batch(step * accumulate + micro)
                draws.begin(step, micro * BATCH)
                loss = criterion(model(x), y, label_smoothing=smoothing)
                (loss / accumulate).backward()
                total += loss.item() / accumulate
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            opt.step()
            averages.update(model)
            losses.append(total)
        return averages, losses

    model = load(model, start)
    averages, losses = margin.train(name, model, steps)
    st.save(os.path.join(here, f"end-{name}.safetensors"), state(model))
    if decay:
        model.load_state_dict(averages.mean)
        st.save(os.path.join(here, f"ema-{name}.safetensors"), state(model))
    print(f'    {{"{name}", {{' + ", ".join(f"{l:.12g}" for l in losses) + "}},")


def run_swa():
    """Averages after every second step, and BN statistics of four other batches: torch.optim.swa_utils."""
    if len(sys.argv) > 1 and "swa" not in sys.argv[1:]:
        return

    def steps(model):
        average = torch.optim.swa_utils.AveragedModel(model)
        opt = torch.optim.SGD([{"params": [p], "weight_decay": 0.01 if p.dim() > 1 else 0} for p in model.parameters()],
                              lr=0.05, momentum=0.9, nesterov=True)
        losses = []
        for step in range(STEPS):
            opt.zero_grad()
            x, y = batch(step)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
            if step % 2:
                average.update_parameters(model)
        torch.optim.swa_utils.update_bn([batch(100 + i) for i in range(4)], average)
        return average, losses

    model = load(Net(Basic, (2, 1), (6, 10), "B", False), "basic-b")
    average, losses = margin.train("swa", model, steps)
    st.save(os.path.join(here, "end-swa.safetensors"), state(model))
    st.save(os.path.join(here, "ema-swa.safetensors"), state(average.module))
    print('    {"swa", {' + ", ".join(f"{l:.12g}" for l in losses) + "}},")


def adamw(model):
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.05}, {"params": others, "weight_decay": 0}]
    return torch.optim.AdamW(groups, lr=0.004, betas=(0.9, 0.99), eps=1e-2)


def lamb(model):
    """Clips the gradients to a norm of 0.5 itself."""
    from timm.optim import Lamb
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.05}, {"params": others, "weight_decay": 0}]
    return Lamb(groups, lr=0.01, betas=(0.9, 0.99), eps=1e-2, max_grad_norm=0.5)


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
    run("adamw", "basic-b", Net(Basic, (2, 1), (6, 10), "B", False), adamw, 0.1, 0.5, 1, 0.7, True)
    sgd = lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    run("mixed", "basic-b", Net(Basic, (2, 1), (6, 10), "B", False), sgd, 0.1, 0.0, 1, 0.7, False, mixed_batch)
    run("bce", "basic-b", Net(Basic, (2, 1), (6, 10), "B", False), adamw, 0.1, 0.0, 1, 0, False, batch, binary(0))
    run("bce-mixed", "basic-b", Net(Basic, (2, 1), (6, 10), "B", False), sgd, 0.1, 0.0, 1, 0, False, mixed_batch, binary(0.2))
    run("lars", "accumulate", Net(Basic, (1, 1), (5, 7), "B", False), lambda m: Lars(m, 2.0, 0.9, 0.01, 0.01, 1e-8, True), 0.0, 0.0, 3, 0.8, False)
    rates = lambda m: torch.optim.SGD(groups(m, 0.05, 0.7, 0.2, 0.01), lr=0.05, momentum=0.9, nesterov=True)
    run("rates-sgd", "basic-b", Net(Basic, (2, 1), (6, 10), "B", False), rates, 0.1, 0.5, 1, 0.7, True)
    rates = lambda m: torch.optim.AdamW(groups(m, 0.004, 0.6, 0.01, 0.05), lr=0.004, betas=(0.9, 0.99), eps=1e-2)
    run("rates-adamw", "basic-b", Net(Basic, (2, 1), (6, 10), "B", False), rates, 0.1, 0.0, 1, 0.7, True)
    run("lamb", "basic-b", Net(Basic, (2, 1), (6, 10), "B", False), lamb, 0.1, 0.0, 1, 0.7, True)
    run("muon", "basic-b", Net(Basic, (2, 1), (6, 10), "B", False), lambda m: Muon(m, 0.01, 0.9, 0.05), 0.1, 0.5, 1, 0.7, True)
    sgd = lambda m: torch.optim.SGD([{"params": [p], "weight_decay": 0.01 if p.dim() > 1 else 0} for p in m.parameters()],
                                    lr=0.05, momentum=0.9, nesterov=True)
    run("dropped", "basic-b", DropNet(DropBasic, (2, 1), (6, 10), "B", False), sgd, 0.0, 0.0, 2, 0.7, True)
    run_swa()
