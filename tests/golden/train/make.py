#!/usr/bin/env python3
"""Writes the golden training runs of test_golden_train.c with PyTorch in float64.

    python3 tests/golden/train/make.py        (Debian 12: python3-torch 1.13.1, python3-numpy)

For each small network: random start weights (start-NAME.safetensors, f32), ten steps of SGD on fixed batches, and
the ten losses with the weights after them (end-NAME.safetensors). Images and labels come from a formula that the C test
has too, so that only weights are stored.
"""
import os, sys
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "..", "tools"))
import margin
import st

STEPS, BATCH, SIZE, CLASSES = 10, 8, 16, 10


class ShortcutA(nn.Module):
    """Subsamples by two and pads channels with zeros on both sides (He et al., option A)."""

    def __init__(self, grow, stride):
        super().__init__()
        self.grow, self.stride = grow, stride

    def forward(self, x):
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.grow // 2, self.grow // 2))


def shortcut(cin, cout, stride, option):
    if option == "A":
        return ShortcutA(cout - cin, stride)
    return nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))


class Basic(nn.Module):
    def __init__(self, cin, width, stride, option):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(cin, width, stride, option) if stride != 1 or cin != width else None

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    def __init__(self, cin, width, stride, option):
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(cin, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.downsample = shortcut(cin, out, stride, option) if stride != 1 or cin != out else None

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Net(nn.Module):
    def __init__(self, block, depths, widths, option, imagenet_stem):
        super().__init__()
        self.large = imagenet_stem
        self.conv1 = nn.Conv2d(3, widths[0], 7 if self.large else 3, 2 if self.large else 1, 3 if self.large else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        cin = widths[0]
        for s, (depth, width) in enumerate(zip(depths, widths)):
            layers = []
            for b in range(depth):
                layers.append(block(cin, width, 2 if s and not b else 1, option))
                cin = width * (4 if block is Bottleneck else 1)
            setattr(self, f"layer{s + 1}", nn.Sequential(*layers))
        self.stages = len(depths)
        self.fc = nn.Linear(cin, CLASSES)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        if self.large:
            x = F.max_pool2d(x, 3, 2, 1)
        for s in range(self.stages):
            x = getattr(self, f"layer{s + 1}")(x)
        return self.fc(x.mean((2, 3)))


def batch(step):
    """Pixels [N,H,W,3] with the formula of the C test, then normalised NCHW."""
    n = BATCH * SIZE * SIZE * 3
    x = np.arange(n, dtype=np.uint64) + np.uint64((margin.first_batch + step) * n)
    x = x * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    x = x ^ (x >> np.uint64(29))
    x = x * np.uint64(2685821657736338717)
    pixels = (x >> np.uint64(56)).astype(np.uint8).reshape(BATCH, SIZE, SIZE, 3)
    labels = (np.arange(BATCH) * 7 + step * 3) % CLASSES
    mean = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64)
    std = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64)
    image = (torch.from_numpy(pixels).double() / 255 - mean) / std
    return image.permute(0, 3, 1, 2), torch.from_numpy(labels)


def state(model):
    return {k: v.detach().numpy().astype(np.float32) for k, v in model.state_dict().items() if "num_batches" not in k}


def run(name, model, nesterov, decay_all, smoothing, clip, accumulate):
    torch.manual_seed(len(name))
    for k, p in model.named_parameters():  # BN parameters other than 1 and 0, so that exchanged parameters are detected
        if p.dim() == 1:
            nn.init.uniform_(p, 0.5, 1.5) if k.endswith("weight") else nn.init.uniform_(p, -0.2, 0.2)
    st.save(os.path.join(here, f"start-{name}.safetensors"), state(model))
    def steps(model):
        weights = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() == 1]
        opt = torch.optim.SGD([{"params": weights, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.01 if decay_all else 0}],
                              lr=0.05, momentum=0.9, nesterov=nesterov)
        losses = []
        for step in range(STEPS):
            opt.zero_grad()
            total = 0.0
            for micro in range(accumulate):
                x, y = batch(step * accumulate + micro)
                loss = F.cross_entropy(model(x), y, label_smoothing=smoothing)
                (loss / accumulate).backward()
                total += loss.item() / accumulate
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            opt.step()
            losses.append(total)
        return losses

    model = model.double()
    losses = margin.train(name, model, steps)
    st.save(os.path.join(here, f"end-{name}.safetensors"), state(model))
    print(f'    {{"{name}", {{' + ", ".join(f"{l:.12g}" for l in losses) + "}},")


if __name__ == "__main__":
    torch.manual_seed(0)
    run("basic-a", Net(Basic, (1, 1, 1), (4, 8, 16), "A", False), True, False, 0.0, 0.0, 1)
    run("basic-b", Net(Basic, (2, 1), (6, 10), "B", False), False, True, 0.1, 0.0, 1)
    run("bottleneck", Net(Bottleneck, (1, 2), (4, 6), "B", True), True, False, 0.1, 0.5, 1)
    run("accumulate", Net(Basic, (1, 1), (5, 7), "B", False), True, False, 0.0, 0.0, 3)
