#!/usr/bin/env python3
"""Writes golden training runs with a teacher (knowledge distillation) in float64, with initial weights of make.py.

    python3 tests/golden/train/make_distilled.py        (Debian 12: python3-torch 1.13.1, python3-torchvision)

The teachers' weights (teacher-NAME/model.safetensors) are random; their configurations are written by hand. The loss of the logits is
PyTorch's KLDivLoss.
"""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

from golden import MEAN, STD, basic_b, batch, blocks, draw_norms, here, run, sgd, st, state
from make import grouped
from make_rules import mixed_batch


def teacher_of(name, make):
    torch.manual_seed(len(name))
    model = make()
    draw_norms(model)
    for k, b in model.named_buffers():
        if "running" in k:
            nn.init.uniform_(b, 0.5, 2.0) if k.endswith("var") else nn.init.uniform_(b, -0.5, 0.5)
    folder = os.path.join(here, f"teacher-{name}")
    os.makedirs(folder, exist_ok=True)
    st.save(os.path.join(folder, "model.safetensors"), state(model))
    return model.double().eval()


def distilled(teacher, weight, temperature, smoothing, renormalise):
    """The loss of a student."""

    def loss(model, x, y):
        logits = model(x)
        with torch.no_grad():
            target = teacher(renormalise(x))
        hard = F.cross_entropy(logits, y, label_smoothing=smoothing)
        soft = F.kl_div(F.log_softmax(logits / temperature, 1), F.softmax(target / temperature, 1), reduction="batchmean")
        return (1 - weight) * hard + weight * temperature ** 2 * soft

    return loss


def other_normalisation(x):
    mean, std = (torch.tensor(v, dtype=torch.float64).reshape(1, 3, 1, 1) for v in (MEAN[3], STD[3]))
    return (x * std + mean - 0.5) / 0.25


if __name__ == "__main__":
    student, teacher = basic_b(), teacher_of("basic", lambda: blocks.basic((1, 2), (6, 10), blocks.shortcut_b))
    run("distilled", student, sgd(nesterov=False, decay_all=True), distilled(teacher, 0.7, 3.0, 0.1, lambda x: x), "basic-b", mixed_batch)
    student, teacher = blocks.basic((1, 1), (5, 7), blocks.shortcut_b), teacher_of("grouped", lambda: grouped((1, 2), (4, 6)))
    run("distilled-grouped", student, sgd(), distilled(teacher, 0.5, 4.0, 0.0, other_normalisation), "accumulate", batch, 3)
