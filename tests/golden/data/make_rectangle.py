#!/usr/bin/env python3
"""Writes rectangle.txt for test_rectangle.c: torchvision's pixels for rectangular inputs.

    python3 tests/golden/data/make_rectangle.py        (Debian 12: python3-torchvision 0.14.1, python3-pil 9.4)

Lines: W H HEIGHT WIDTH COVER HASH: the synthetic image of make.py of W x H, resized to cover a rectangle of height COVER and of the shape
of the result, and its centre of HEIGHT x WIDTH. COVER 0: the whole image resized to HEIGHT x WIDTH. HASH is FNV-1a of the bytes.
"""
import os

from fractions import Fraction
from math import floor

import numpy as np
from PIL import Image
from torchvision.transforms import functional as F


def image(w, h):
    x, y, c = (np.arange(n, dtype=np.int64) for n in (w, h, 3))
    x, y, c = x[None, :, None], y[:, None, None], c[None, None, :]
    smooth, noisy = x * (3 + c) + y * (5 - c) + (x * y) // 7, (x * 7919 + y * 104729 + c * 1299709) // 13
    return Image.fromarray((np.where((x // 5 + y // 3) % 4 == 0, noisy, smooth) % 256).astype(np.uint8))


def fnv(pixels):
    h = 0xcbf29ce484222325
    for byte in pixels.tobytes():
        h = (h ^ byte) * 0x100000001b3 % 2 ** 64
    return h


lines = []
for w, h, height, width, cover in ((50, 40, 24, 40, 28), (40, 50, 24, 40, 28), (50, 30, 24, 40, 24), (33, 90, 40, 16, 45), (60, 36, 18, 30, 27),
                                   (64, 64, 20, 48, 23), (50, 40, 24, 40, 0), (31, 77, 20, 48, 0)):
    full_w, full_h = floor(Fraction(cover * width, height)), cover
    if Fraction(w, h) > Fraction(full_w, full_h or 1):
        full_w = w * full_h // h
    elif cover:
        full_h = h * full_w // w
    one = F.resize(image(w, h), (full_h, full_w) if cover else (height, width))
    lines.append("%d %d %d %d %d %016x" % (w, h, height, width, cover, fnv(F.center_crop(one, (height, width)) if cover else one)))
open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "rectangle.txt"), "w").write("\n".join(lines) + "\n")
