#!/usr/bin/env python3
"""Writes pil.safetensors for test_augment.c: small images and PIL's results for them, with the calls of torchvision's functional_pil and
autoaugment.

    python3 tests/golden/augment/make.py        (Debian 12: python3-pil 9.4, python3-numpy)

A name is "OP AMOUNT IMAGE": the number of the operation in enum cr_pixel_op, its argument, the name of the image.
"""
import os, sys

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "..", "tools"))
import st

out = {}


def images():
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:21, 0:21]
    smooth = np.stack([x * 12, y * 11, (x + y) * 5], 2)
    some = rng.integers(0, 256, (16, 16, 3))
    some[:4] = some[:4] // 8 + 100
    flat = np.full((9, 9, 3), 77)
    flat[4, 4] = (200, 10, 90)
    return {"smooth": smooth.astype(np.uint8), "noise": some.astype(np.uint8), "flat": flat.astype(np.uint8),
            "one": np.full((5, 5, 3), 130, np.uint8)}


def keep(op, by, name, image):
    out["%d %.17g %s" % (op, by, name)] = np.asarray(image)


def hue(image, amount):
    h, s, v = image.convert("HSV").split()
    rotated = np.asarray(h, dtype=np.uint8).copy()
    rotated += np.uint8(int(amount * 255) % 256)
    return Image.merge("HSV", (Image.fromarray(rotated, "L"), s, v)).convert("RGB")


def affine(image, matrix):
    return image.transform(image.size, Image.AFFINE, matrix, Image.NEAREST)


for name, array in images().items():
    out[name] = array
    image = Image.fromarray(array)
    for m in (-0.99, -0.33, 0.066, 0.5, 0.99):
        keep(1, m, name, affine(image, (1, m, 0, 0, 1, 0)))
        keep(2, m, name, affine(image, (1, 0, 0, m, 1, 0)))
    for t in (-32, -4.2666, 0.9, 3.2, 8.53):
        keep(3, t, name, affine(image, (1, 0, -int(t), 0, 1, 0)))
        keep(4, t, name, affine(image, (1, 0, 0, 0, 1, -int(t))))
    for degrees in (-135, -90, -31.5, 4.5, 45, 90, 121.5):
        keep(5, degrees, name, image.rotate(degrees, Image.NEAREST))
    for factor in (0.01, 0.34, 1.0, 1.33, 1.99):
        keep(6, factor, name, ImageEnhance.Brightness(image).enhance(factor))
        keep(7, factor, name, ImageEnhance.Color(image).enhance(factor))
        keep(8, factor, name, ImageEnhance.Contrast(image).enhance(factor))
        keep(9, factor, name, ImageEnhance.Sharpness(image).enhance(factor))
    for bits in range(2, 9):
        keep(10, bits, name, ImageOps.posterize(image, bits))
    for threshold in (0.0, 8.5, 127.5, 246.5, 255.0):
        keep(11, threshold, name, ImageOps.solarize(image, threshold))
    keep(12, 0, name, ImageOps.autocontrast(image))
    keep(13, 0, name, ImageOps.equalize(image))
    for amount in (-0.5, -0.1, 0.0, 0.05, 0.31, 0.5):
        keep(14, amount, name, hue(image, amount))

# every colour of a coarse grid, for the conversion to HSV and back
grid = np.stack(np.meshgrid(*[np.arange(0, 256, 17)] * 3), 3).reshape(64, 64, 3).astype(np.uint8)
out["grid"] = grid
for amount in (0.0, 0.13):
    keep(14, amount, "grid", hue(Image.fromarray(grid), amount))
st.save(os.path.join(here, "pil.safetensors"), out)
