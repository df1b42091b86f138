#!/usr/bin/env python3
"""Writes schedules.safetensors: mask updates of RigL and steps of the group decay, computed with numpy alone, for
tests/unit/pruning/test_prune_schedules.c.

    python3 tests/golden/pruning/make.py        (numpy)

RigL is written here as Evci et al.'s published TensorFlow code does it (scores, lifted scores, two top-k), not by
thresholds as in src/pruning/regrow.c. The group decay is the gradient of DepGraph's penalty, with the groups of one small
network by hand. All inputs are small multiples of 1/32, so that they are exact in float32 and have many ties.
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

# ---- group decay: a network of one basic block ----

W = 8
shapes = {"conv1.weight": (W, 3, 3, 3), "layer1.0.conv1.weight": (W, 3, 3, W), "layer1.0.conv2.weight": (W, 3, 3, W),
          "fc.weight": (3, 1, 1, W), "fc.bias": (3,)}
for bn in ("bn1", "layer1.0.bn1", "layer1.0.bn2"):
    shapes[bn + ".weight"] = shapes[bn + ".bias"] = (W,)
p = {name: draw(*shape) for name, shape in shapes.items()}
amount = 1 / 64

# (parameter, axis): outputs are axis 0, inputs the last one
stream = [("conv1.weight", 0), ("bn1.weight", 0), ("bn1.bias", 0), ("layer1.0.conv1.weight", 3),
          ("layer1.0.conv2.weight", 0), ("layer1.0.bn2.weight", 0), ("layer1.0.bn2.bias", 0), ("fc.weight", 3)]
inner = [("layer1.0.conv1.weight", 0), ("layer1.0.bn1.weight", 0), ("layer1.0.bn1.bias", 0),
         ("layer1.0.conv2.weight", 3)]
penalty = {name: np.zeros(shape) for name, shape in shapes.items()}  # sum of gamma of an element's units
for group in (stream, inner):
    squares = np.zeros(W)
    for name, axis in group:
        if p[name].ndim == 4:
            squares += np.square(np.moveaxis(p[name], axis, 0).reshape(W, -1)).sum(1)
    norm = np.sqrt(squares)
    gamma = 2.0 ** (4 * (norm.max() - norm) / (norm.max() - norm.min()))
    for name, axis in group:
        shape = [1] * p[name].ndim
        shape[axis] = W
        penalty[name] = penalty[name] + gamma.reshape(shape)
out["decay.amount"] = np.array([amount], dtype="<f8")
for name in shapes:
    after = p[name] * np.maximum(0, 1 - amount * penalty[name])
    keep("decay." + name, before=p[name].ravel(), after=after.ravel())

st.save(os.path.join(here, "schedules.safetensors"), out)
