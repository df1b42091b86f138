#!/usr/bin/env python3
"""Writes golden training runs on other images, in float64, like make.py: grey, of four channels and 16 bits, and of two sizes.

    python3 tests/golden/train/make_images.py        (Debian 12: python3-torch 1.13.1, python3-numpy)
"""
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import margin
from make import BATCH, CLASSES, SIZE, STEPS, Basic, Net, here, st, state

# The defaults of data.mean and data.std for each number of channels.
MEAN = {1: [0.449], 3: [0.485, 0.456, 0.406], 4: [0.485, 0.456, 0.406, 0.449]}
STD = {1: [0.226], 3: [0.229, 0.224, 0.225], 4: [0.229, 0.224, 0.225, 0.226]}


def batch(step, size, channels, bits):
    """Bytes with the formula of the C test, as samples [N,H,W,channels], then normalised NCHW."""
    n = BATCH * size * size * channels * bits // 8
    x = np.arange(n, dtype=np.uint64) + np.uint64((margin.first_batch + step) * n)
    x = x * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    x = x ^ (x >> np.uint64(29))
    x = x * np.uint64(2685821657736338717)
    samples = (x >> np.uint64(56)).astype(np.uint8).view("<u2" if bits == 16 else "u1").reshape(BATCH, size, size, channels)
    image = (samples.astype(np.float64) / (2**bits - 1) - MEAN[channels]) / STD[channels]
    return torch.from_numpy(image).permute(0, 3, 1, 2), torch.from_numpy((np.arange(BATCH) * 7 + step * 3) % CLASSES)


def run(name, channels, bits, size_of, start=None):
    torch.manual_seed(len(name))
    model = Net(Basic, (2, 1), (6, 10), "B", False)
    model.conv1 = nn.Conv2d(channels, 6, 3, 1, 1, bias=False)
    if start:
        model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in st.load(os.path.join(here, f"start-{start}.safetensors"))[0].items()}, strict=False)
    else:
        st.save(os.path.join(here, f"start-{name}.safetensors"), state(model))

    def steps(model):
        weights = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() == 1]
        opt = torch.optim.SGD([{"params": weights, "weight_decay": 0.01}, {"params": others, "weight_decay": 0}], lr=0.05, momentum=0.9, nesterov=True)
        losses = []
        for step in range(STEPS):
            opt.zero_grad()
            x, y = batch(step, size_of(step), channels, bits)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        return losses

    model = model.double()
    losses = margin.train(name, model, steps)
    st.save(os.path.join(here, f"end-{name}.safetensors"), state(model))
    print(f'    {{"{name}", {{' + ", ".join(f"{l:.12g}" for l in losses) + "}},")


if __name__ == "__main__":
    run("grey", 1, 8, lambda step: SIZE)
    run("deep-alpha", 4, 16, lambda step: SIZE)
    run("resized", 3, 8, lambda step: SIZE if step < 5 else 24, "basic-b")
