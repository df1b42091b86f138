#!/usr/bin/env python3
"""Writes golden training runs with a teacher (knowledge distillation) in float64, like make.py, with its initial weights.

    python3 tests/golden/train/make_distilled.py        (Debian 12: python3-torch 1.13.1, python3-numpy)

The teachers' weights (teacher-NAME/model.safetensors) are random; their configurations are written by hand. The loss of the logits is
PyTorch's KLDivLoss.
"""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import margin
from make import CLASSES, STEPS, Basic, Net, batch, here, st, state
from make_nets import Grouped
from make_rules import load, mixed_batch


def teacher_of(name, make):
    torch.manual_seed(len(name))
    model = make()
    for k, p in model.named_parameters():
        if p.dim() == 1:
            nn.init.uniform_(p, 0.5, 1.5) if k.endswith("weight") else nn.init.uniform_(p, -0.2, 0.2)
    for k, b in model.named_buffers():
        if "running" in k:
            nn.init.uniform_(b, 0.5, 2.0) if k.endswith("var") else nn.init.uniform_(b, -0.5, 0.5)
    folder = os.path.join(here, f"teacher-{name}")
    os.makedirs(folder, exist_ok=True)
    st.save(os.path.join(folder, "model.safetensors"), state(model))
    return model.double().eval()


def stages(model):
    """The outputs of the stages during the next forward pass."""
    outputs = []
    for s in range(model.stages):
        getattr(model, f"layer{s + 1}").register_forward_hook(lambda m, i, y: outputs.append(y.double()))
    return outputs


def run(name, start, model, teacher, weight, temperature, features, smoothing, accumulate, nesterov, decay_all, batch, renormalise):
    model = load(model, start)
    mine, theirs = (stages(model), stages(teacher)) if features else ([], [])

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
                del mine[:], theirs[:]
                logits = model(x)
                with torch.no_grad():
                    target = teacher(renormalise(x))
                hard = F.cross_entropy(logits, y, label_smoothing=smoothing)
                soft = F.kl_div(F.log_softmax(logits / temperature, 1), F.softmax(target / temperature, 1), reduction="batchmean")
                loss = (1 - weight) * hard + weight * temperature ** 2 * soft
                if features:
                    loss = loss + features * sum(F.mse_loss(a, b) for a, b in zip(mine, theirs))
                (loss / accumulate).backward()
                total += loss.item() / accumulate
            opt.step()
            losses.append(total)
        return losses

    losses = margin.train(name, model, steps)
    st.save(os.path.join(here, f"end-{name}.safetensors"), state(model))
    print(f'    {{"{name}", {{' + ", ".join(f"{l:.12g}" for l in losses) + "}},")


def other_normalisation(x):
    mean, std = (torch.tensor(v, dtype=torch.float64).reshape(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return (x * std + mean - 0.5) / 0.25


if __name__ == "__main__":
    run("distilled", "basic-b", Net(Basic, (2, 1), (6, 10), "B", False), teacher_of("basic", lambda: Net(Basic, (1, 2), (6, 10), "B", False)),
        0.7, 3.0, 0.25, 0.1, 1, False, True, mixed_batch, lambda x: x)
    run("distilled-grouped", "accumulate", Net(Basic, (1, 1), (5, 7), "B", False), teacher_of("grouped", lambda: Grouped((1, 2), (4, 6), 2, 64)), 0.5, 4.0, 0,
        0.0, 3, True, False, batch, other_normalisation)
