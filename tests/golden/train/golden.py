"""What the scripts of golden training runs share: the batches of test_golden_train.c, a run of ten steps in float64, and its files.

Images and labels come from a formula that the C test has too, so that only weights and losses are stored: the initial weights in
start-NAME.safetensors (f32), the weights after the steps in end-NAME.safetensors, their averages in ema-NAME.safetensors, and a line of losses.txt
with NAME, the number of its first batch and the ten losses.
"""
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import margin

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "..", "tools"))
import st
import torch_blocks as blocks

STEPS, BATCH, SIZE, CLASSES = 10, 8, 16, 10
# The defaults of data.mean and data.std for each number of channels.
MEAN = {1: [0.449], 3: [0.485, 0.456, 0.406], 4: [0.485, 0.456, 0.406, 0.449]}
STD = {1: [0.226], 3: [0.229, 0.224, 0.225], 4: [0.229, 0.224, 0.225, 0.226]}


def samples(step, size=SIZE, channels=3, bits=8):
    """Bytes with the formula of the C test, as samples [N,H,W,channels], and labels."""
    n = BATCH * size * size * channels * bits // 8
    x = np.arange(n, dtype=np.uint64) + np.uint64((margin.first_batch + step) * n)
    x = x * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    x = x ^ (x >> np.uint64(29))
    x = x * np.uint64(2685821657736338717)
    pixels = (x >> np.uint64(56)).astype(np.uint8).view("<u2" if bits == 16 else "u1").reshape(BATCH, size, size, channels)
    return pixels, (np.arange(BATCH) * 7 + step * 3) % CLASSES


def normalised(pixels, bits=8):
    """[N,H,W,channels] as the network's input, [N,channels,H,W]."""
    channels = pixels.shape[3]
    image = (pixels.astype(np.float64) / (2**bits - 1) - MEAN[channels]) / STD[channels]
    return torch.from_numpy(image).permute(0, 3, 1, 2)


def batch(step, size=SIZE, channels=3, bits=8):
    pixels, labels = samples(step, size, channels, bits)
    return normalised(pixels, bits), torch.from_numpy(labels)


def basic_b():
    return blocks.basic((2, 1), (6, 10), blocks.shortcut_b)


def state(model):
    return {k: v.detach().numpy().astype(np.float32) for k, v in model.state_dict().items() if "num_batches" not in k}


def save(part, name, model):
    st.save(os.path.join(here, f"{part}-{name}.safetensors"), state(model))


def load(model, start):
    weights = st.load(os.path.join(here, f"start-{start}.safetensors"))[0]
    model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in weights.items()}, strict=False)


def draw_norms(model):
    """BN parameters other than 1 and 0, so that exchanged parameters are detected."""
    for k, p in model.named_parameters():
        if p.dim() == 1:
            nn.init.uniform_(p, 0.5, 1.5) if k.endswith("weight") else nn.init.uniform_(p, -0.2, 0.2)


def decayed(model, decay, decay_all=False):
    """Parameter groups: weight decay for matrices and filters, for vectors only with decay_all."""
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    return [{"params": weights, "weight_decay": decay}, {"params": others, "weight_decay": decay if decay_all else 0}]


def sgd(nesterov=True, decay_all=False):
    return lambda model: torch.optim.SGD(decayed(model, 0.01, decay_all), lr=0.05, momentum=0.9, nesterov=nesterov)


def cross_entropy(smoothing=0.0):
    return lambda model, x, y: F.cross_entropy(model(x), y, label_smoothing=smoothing)


def write_losses(name, losses):
    """Replaces or adds the line of this run."""
    path = os.path.join(here, "losses.txt")
    with open(path) as f:
        lines = {line.split()[0]: line for line in f}
    lines[name] = " ".join([name, str(margin.first_batch)] + [f"{loss:.12g}" for loss in losses]) + "\n"
    with open(path, "w") as f:
        f.writelines(lines.values())


def run(name, model, make_optimizer, loss_of, start=None, batch=batch, accumulate=1, clip=0.0, begin=None, after=None):
    """Trains `model` and writes the files of the run. loss_of(model, x, y) is the loss of batch(number). start: the run whose initial weights
    are used; without it those of the model are written. begin(step, micro) is called before each forward pass. after(model) makes
    averages: update(step, model) follows each step, end() returns a model that has them."""
    if len(sys.argv) > 1 and name not in sys.argv[1:]:
        return
    if start:
        load(model, start)
    else:
        save("start", name, model)

    def steps(model):
        averages, losses = after(model) if after else None, []
        optimizer = make_optimizer(model)
        for step in range(STEPS):
            model.zero_grad()
            total = 0.0
            for micro in range(accumulate):
                x, y = batch(step * accumulate + micro)
                if begin:
                    begin(step, micro)
                loss = loss_of(model, x, y)
                (loss / accumulate).backward()
                total += loss.item() / accumulate
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if averages:
                averages.update(step, model)
            losses.append(total)
        return averages, losses

    model = model.double()
    averages, losses = margin.train(name, model, steps)
    save("end", name, model)
    if averages:
        save("ema", name, averages.end())
    write_losses(name, losses)
