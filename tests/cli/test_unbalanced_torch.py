#!/usr/bin/env python3
"""test_unbalanced_torch.py: training with class weights and with balanced sampling on a dataset with a ratio of 100 : 1, against PyTorch in
float64 on the same draws: the losses in the log of `cresnet train` are those of PyTorch.

The draws are the batches of the loader (tests/tools/batches_tool.c). With balanced sampling they must also have every class equally often.
Needs torch (Debian: python3-torch); without it the comparisons count as skipped."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools"))
import peers
import png
from support import BIN, TINY_MODEL, check, cresnet, run, skip

TOOLS = os.path.join(os.path.dirname(BIN), "tests")
COUNTS, BATCH, STEPS, SIZE = {"common": 100, "medium": 30, "rare": 1}, 16, 16, 8
LR = 0.05
RUNS = {"plain": [], "weighted": ["loss.class_weights=balanced"], "smoothed": ["loss.class_weights=0.5,1,4", "train.label_smoothing=0.1"],
        "sampled": ["data.sampling=balanced"], "both": ["data.sampling=balanced", "loss.class_weights=0.5,1,4"]}
BALANCED = [sum(COUNTS.values()) / (len(COUNTS) * n) for n in COUNTS.values()]  # scikit-learn's rule
WEIGHTS = {"plain": [1, 1, 1], "weighted": BALANCED, "smoothed": [0.5, 1, 4], "sampled": [1, 1, 1], "both": [0.5, 1, 4]}


def draw_images():
    for split in "train", "val":
        for k, (name, count) in enumerate(COUNTS.items()):
            os.makedirs(f"images/{split}/{name}")
            for i in range(count if split == "train" else 1):
                png.write(f"images/{split}/{name}/{i}.png", SIZE, SIZE,
                          lambda x, y: tuple((x * 29 + y * 53 + i * 83 + k * 71 + c * 97 + x * y * (i + 3)) % 256 for c in range(3)))
    with open("net.ini", "w") as f:
        f.write(TINY_MODEL + f"[data]\nkind = folder\nroot = images\nimage_size = {SIZE}\ncrop = none\nhflip = 0\nworkers = 1\n"
                f"[train]\nbatch = {BATCH}\nsteps = {STEPS}\nlog_every = 1\ndevice = cpu\nthreads = 1\nprecision = fp32\n"
                f"[optim]\nlr = {LR}\nweight_decay = 0\nmomentum = 0.9\n[schedule]\nkind = constant\n")


def drawn(name):
    """Images, labels and the loss of every step of `cresnet train`; the initial weights are in start.safetensors."""
    ran = cresnet("train", "net.ini", "-o", name, "-q", *RUNS[name])
    check(f"{name}: train", ran.returncode == 0, ran.stderr)
    subprocess.run([f"{TOOLS}/batches_tool", "net.ini", "draws", str(STEPS), *RUNS[name]], check=True)
    subprocess.run([f"{TOOLS}/steps_tool", "net.ini", "model.classes=3", "--steps", "0", "--save", "start"], check=True, stdout=subprocess.DEVNULL)
    with open(f"{name}/log.jsonl") as f:
        losses = [e["loss"] for e in map(json.loads, f) if e.get("event") == "train"]
    draws = st.load("draws")[0]
    return draws["images"], draws["labels"], losses


def torch_losses(name, images, labels):
    """The network of TINY_MODEL, with PyTorch's CrossEntropyLoss."""
    model = torch_nets.TinyResNet(len(COUNTS), st.load("start")[0]).double()
    loss_of = torch.nn.CrossEntropyLoss(weight=torch.tensor(WEIGHTS[name], dtype=torch.float64), label_smoothing=0.1 if name == "smoothed" else 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    losses = []
    for pixels, label in zip(images, labels):
        optimizer.zero_grad()
        loss = loss_of(model(torch_nets.imagenet_input(pixels, torch.float64)), torch.from_numpy(label.astype("i8")))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def one(name):
    images, labels, losses = drawn(name)
    wanted = torch_losses(name, images, labels)
    gap = max(abs(a / b - 1) for a, b in zip(losses, wanted))
    print(f"    {name}: losses {losses[0]:.4f} to {losses[-1]:.4f}, largest relative difference from PyTorch {gap:.2g}")
    check(f"{name}: the losses of PyTorch", len(losses) == STEPS and gap < 1e-4, (losses, wanted))
    counts = np.bincount(labels.reshape(-1), minlength=3)
    if "data.sampling=balanced" in RUNS[name]: # two epochs of 8 batches; 128 is no multiple of 3
        check(f"{name}: classes equally often", counts.max() - counts.min() <= 4, counts)
    else:
        check(f"{name}: classes by their size", counts[2] <= 2 and counts[0] > 3 * counts[1] * 0.9, counts)


def main():
    if have_torch:
        draw_images()
    for name in RUNS:
        one(name) if have_torch else skip(f"{name}: no python3 with torch")


have_torch = peers.with_modules(__file__, "torch", "torchvision", "numpy")
if have_torch:
    import numpy as np
    import torch

    import st
    import torch_nets
run(main)
