#!/usr/bin/env python3
"""Writes golden training runs of the other update rules, with moving averages, in float64, like make.py, with its initial weights.

    python3 tests/golden/train/make_rules.py        (Debian 12: python3-torch 1.13.1, python3-numpy)

One run has mixed images and labels (the mixing records of test_golden_train.c). AdamW is torch.optim's. LARS (You et al. 2017) and the
averages (as timm's ModelEmaV3: state dict, warm-up) are implemented here.
"""
import os

import numpy as np
import torch
import torch.nn.functional as F

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


def run(name, start, model, make, smoothing, clip, accumulate, decay, warmup, batch=batch):
    model = load(model, start)
    opt, averages, losses = make(model), Averages(model, decay, warmup), []
    for step in range(STEPS):
        model.zero_grad()
        total = 0.0
        for micro in range(accumulate):
            x, y = batch(step * accumulate + micro)
            loss = F.cross_entropy(model(x), y, label_smoothing=smoothing)
            (loss / accumulate).backward()
            total += loss.item() / accumulate
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        averages.update(model)
        losses.append(total)
    st.save(os.path.join(here, f"end-{name}.safetensors"), state(model))
    model.load_state_dict(averages.mean)
    st.save(os.path.join(here, f"ema-{name}.safetensors"), state(model))
    print(f'    {{"{name}", {{' + ", ".join(f"{l:.12g}" for l in losses) + "}},")


def adamw(model):
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.05}, {"params": others, "weight_decay": 0}]
    return torch.optim.AdamW(groups, lr=0.004, betas=(0.9, 0.99), eps=1e-2)


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
    run("lars", "accumulate", Net(Basic, (1, 1), (5, 7), "B", False), lambda m: Lars(m, 2.0, 0.9, 0.01, 0.01, 1e-8, True), 0.0, 0.0, 3, 0.8, False)
    rates = lambda m: torch.optim.SGD(groups(m, 0.05, 0.7, 0.2, 0.01), lr=0.05, momentum=0.9, nesterov=True)
    run("rates-sgd", "basic-b", Net(Basic, (2, 1), (6, 10), "B", False), rates, 0.1, 0.5, 1, 0.7, True)
    rates = lambda m: torch.optim.AdamW(groups(m, 0.004, 0.6, 0.01, 0.05), lr=0.004, betas=(0.9, 0.99), eps=1e-2)
    run("rates-adamw", "basic-b", Net(Basic, (2, 1), (6, 10), "B", False), rates, 0.1, 0.0, 1, 0.7, True)
