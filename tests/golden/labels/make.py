#!/usr/bin/env python3
"""Writes scores.safetensors: scikit-learn's average precision and largest F1 of invented networks with several labels per image,
for tests/unit/session/test_label_scores.c.

    python3 tests/golden/labels/make.py        (scikit-learn 1.9, numpy)

Logits are multiples of 1/4, so that many are equal. In the part `rare` one class has no image and one has all.
"""
import os
import sys

import numpy as np
from sklearn.metrics import average_precision_score, precision_recall_curve

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))
import st


def part(name, images, classes, rng, noise):
    has = rng.random((images, classes)) < 0.3
    if name == "rare":
        has[:, 0], has[:, 1], has[:, 2] = False, True, np.arange(images) == 5
    logits = np.rint(4 * (2 * has - 1 + noise * rng.standard_normal((images, classes)))) / 4
    ap, f1, threshold_range = [], [], []
    for k in range(classes):
        if not has[:, k].any():
            ap, f1, threshold_range = ap + [-1.0], f1 + [0.0], threshold_range + [[0.5, 0.5]]
            continue
        ap.append(average_precision_score(has[:, k], logits[:, k]))
        precision, recall, thresholds = precision_recall_curve(has[:, k], logits[:, k])
        scores = 2 * precision * recall / np.maximum(precision + recall, 1e-30)
        f1.append(scores.max())
        # of equal F1 the highest threshold: the predicted logits are >= thresholds[at]
        at = max(i for i in range(len(thresholds)) if scores[i] >= scores.max() - 1e-12)
        below = logits[logits[:, k] < thresholds[at], k]
        threshold_range.append([1 / (1 + np.exp(-below.max())) if below.size else 0, 1 / (1 + np.exp(-thresholds[at]))])
    words = np.zeros((images, 1 + (classes + 31) // 32), dtype=np.uint32)
    words[:, 0] = has.sum(axis=1)
    for k in range(classes):
        words[:, 1 + k // 32] |= has[:, k].astype(np.uint32) << np.uint32(k % 32)
    some = [a for a in ap if a >= 0]
    return {name + ".logits": logits.astype(np.float32), name + ".labels": words.view(np.int32),
            name + ".ap": np.array(ap), name + ".f1": np.array(f1), name + ".map": np.array([np.mean(some)]),
            name + ".range": np.array(threshold_range)}


rng = np.random.default_rng(7)
tensors = {}
for args in (("few", 40, 5, rng, 1.0), ("wide", 60, 37, rng, 2.0), ("rare", 50, 4, rng, 0.5)):
    tensors.update(part(*args))
st.save(os.path.join(HERE, "scores.safetensors"), tensors)
