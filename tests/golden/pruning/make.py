#!/usr/bin/env python3
"""Writes schedules.safetensors: mask updates of RigL, computed with numpy alone, for
tests/unit/pruning/test_prune_schedules.c.

    python3 tests/golden/pruning/make.py        (numpy)

RigL is written here as Evci et al.'s published TensorFlow code does it (scores, lifted scores, two top-k), not by
thresholds as in src/pruning/regrow.c. All inputs are small multiples of 1/32, so that they are exact in float32 and have many ties.
"""
import os
import sys

import numpy as np

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "..", "tools"))
import st  # noqa: E402

rng = np.random.default_rng(20261125)
out = {}


def draw(*shape, span=40):
    return (rng.integers(-span, span + 1, shape) / 32).astype(np.float64)


def keep(part, **values):
    for name, value in values.items():
        out[f"{part}.{name}"] = np.ascontiguousarray(value, dtype="<f4")


# ---- RigL ----

def top_k(scores, k):
    """Mask of the k largest; of equal ones the first."""
    mask = np.zeros(scores.size, dtype=bool)
    mask[np.argsort(-scores, kind="stable")[:k]] = True
    return mask


def rigl(weights, grad, momentum, mask, drop_fraction):
    ones = int(mask.sum())
    n_prune = int(np.float64(ones) * drop_fraction)
    n_keep = ones - n_prune
    score_drop = np.where(mask, np.abs(weights), -1.0)
    nnz_mask = top_k(score_drop, n_keep)
    score_grow = np.abs(grad)
    lifted = np.where(nnz_mask, score_grow.min() - 1, score_grow)
    grown = top_k(lifted, n_prune)
    after = nnz_mask | grown
    new = grown & ~mask
    weights = np.where(new, 0.0, weights) * after
    momentum = np.where(new, 0.0, momentum) * after
    return weights, momentum, after


SHAPES = {"conv1": (8, 3, 3, 3), "a": (8, 3, 3, 8), "b": (16, 1, 1, 8), "fc": (10, 1, 1, 16)}
for part, fraction in (("rigl_most", 0.3), ("rigl_few", 0.02), ("rigl_all", 1.0), ("rigl_none", 0.001)):
    out[part + ".fraction"] = np.array([fraction], dtype="<f8")
    for layer, shape in SHAPES.items():
        n = int(np.prod(shape))
        pruned = layer in ("a", "b")
        mask = rng.random(n) < (0.3 if pruned else 2)
        weights, momentum, grad = draw(n) * mask, draw(n) * mask, draw(n)
        keep(f"{part}.{layer}", value=weights, momentum=momentum, grad=grad, mask=mask)
        if pruned:
            weights, momentum, mask = rigl(weights, grad, momentum, mask, fraction)
        keep(f"{part}.{layer}", value_after=weights, momentum_after=momentum, mask_after=mask)

st.save(os.path.join(here, "schedules.safetensors"), out)
