#!/usr/bin/env python3
"""Writes policies.txt for test_augment_policy.c: what torchvision's RandAugment and AutoAugment do to an image, for fixed draws.

    python3 tests/golden/augment/make_policies.py        (Debian 12: python3-torchvision 0.14.1, python3-pil 9.4)

Lines:  rand OP BIN MINUS FILL HASH                    one operation of RandAugment at magnitude BIN of 31
        POLICY PAIR PERCENT PERCENT MINUS FILL HASH    both operations of a pair of AutoAugment
OP is a number of enum cr_pixel_op. FILL is the grey level of uncovered pixels. HASH is FNV-1a of the bytes of the image.
"""
import os

import numpy as np
from PIL import Image
from torchvision.transforms import InterpolationMode, autoaugment

W, H = 24, 17
names = ["Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness", "Posterize",
         "Solarize", "AutoContrast", "Equalize"]


def image():
    y, x, c = np.mgrid[0:H, 0:W, 0:3]
    return Image.fromarray((30 + (x * 9 + y * (5 + 4 * c) + (x * x + 3 * y * y + 11 * c) % 23 * 2) % 180).astype(np.uint8))


def fnv(pixels):
    h = 0xcbf29ce484222325
    for byte in pixels.tobytes():
        h = (h ^ byte) * 0x100000001b3 % 2 ** 64
    return h


def apply(pixels, space, name, at, minus, fill):
    magnitudes, signed = space[name]
    magnitude = float(magnitudes[at].item()) if magnitudes.ndim > 0 else 0.0
    if signed and minus:
        magnitude *= -1.0
    return autoaugment._apply_op(pixels, name, magnitude, interpolation=InterpolationMode.NEAREST, fill=[fill] * 3)


lines = []
space = autoaugment.RandAugment()._augmentation_space(31, (H, W))
assert list(space) == names
for op, name in enumerate(names):
    for at in range(0, 31, 3):
        for minus in (0, 1):
            fill = 77 * (at % 2)
            lines.append("rand %d %d %d %d %016x" % (op, at, minus, fill, fnv(apply(image(), space, name, at, minus, fill))))
for policy in autoaugment.AutoAugmentPolicy:
    transform = autoaugment.AutoAugment(policy)
    space = transform._augmentation_space(10, (H, W))
    for index, pair in enumerate(transform.policies):
        for minus in (0, 1):
            pixels = image()
            for name, probability, at in pair:
                pixels = apply(pixels, space, name, at, minus, 0)
            percent = [round(100 * p) for _, p, _ in pair]
            lines.append("auto_%s %d %d %d %d 0 %016x" % (policy.value, index, *percent, minus, fnv(pixels)))
open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "policies.txt"), "w").write("\n".join(lines) + "\n")
