#!/usr/bin/env python3
"""Writes distill.safetensors: PyTorch's results in float64 for the losses of knowledge distillation, for
tests/unit/device/test_ref_distill.c.

    python3 tests/golden/loss/make_distill.py tests/golden/loss/distill.safetensors

Made with PyTorch 1.13. All inputs are small multiples of 1/32, so that they are exact in float32.
"""
import os
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import st

torch.manual_seed(20260102)
tensors = {}
N = 8
labels = torch.tensor([3, 0, -1, 9, 5, -1, 7, 2])
seen = labels >= 0


def draw(*shape):
    return torch.randint(-96, 97, shape).double() / 32


def keep(name, values):
    for part, value in values.items():
        value = value.detach() if part in ("dx", "metrics") else value.detach().to(torch.int32 if part == "labels" else torch.float32)
        tensors[name + "." + part] = value.contiguous()


def metrics(first):
    return torch.tensor([first, 6, 2, 5], dtype=torch.float64)


def logits(name, classes, weight, temperature):
    """Hinton et al. 2015: KLDivLoss of the softened logits, times the square of the temperature."""
    student, teacher, dy = (draw(N, classes) * 2).requires_grad_(), draw(N, classes) * 2, draw(N, classes)
    kl = F.kl_div(F.log_softmax(student[seen] / temperature, dim=1), F.softmax(teacher[seen] / temperature, dim=1), reduction="batchmean")
    part = weight * temperature ** 2 * kl
    part.backward()
    hard = 12.5
    keep(name, {"logits": student, "teacher": teacher, "dy": dy, "labels": labels.reshape(N, 1), "before": metrics(hard),
                "options": torch.tensor([weight, temperature]), "metrics": metrics((1 - weight) * hard + part.item() * seen.sum().item()),
                "dx": dy + student.grad})


def features(name, shape, weight):
    x, teacher, dy = draw(N, *shape).requires_grad_(), draw(N, *shape), draw(N, *shape)
    part = weight * F.mse_loss(x[seen], teacher[seen])
    part.backward()
    keep(name, {"logits": x, "teacher": teacher, "dy": dy, "labels": labels.reshape(N, 1), "before": metrics(12.5),
                "options": torch.tensor([weight, 0.0]), "metrics": metrics(12.5 + part.item() * seen.sum().item()), "dx": dy + x.grad})


logits("warm", 10, 0.5, 4.0)
logits("cold", 10, 0.75, 0.5)
logits("alone", 13, 1.0, 2.0)
features("features", (3, 5, 4), 0.25)
st.save(sys.argv[1], {name: t.numpy() for name, t in tensors.items()})
