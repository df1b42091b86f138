#!/usr/bin/python3
"""Writes formats.txt and resize_formats.txt: the pixels of the golden images of this folder, and resized images, in every format of
data.channels and data.bits. The reference is PIL, and numpy where PIL has no such mode. Needs numpy and
pillow 10.3 to 11 (older versions do not resize the mode I;16; version 13 begins with the vertical pass for some shapes):

    python3 tests/golden/data/make_formats.py

formats.txt: name, channels, bits, FNV-1a sum (64 bits) of the samples, those of 16 bits in little-endian order.
resize_formats.txt: channels, bits, width and height, box (x0 y0 x1 y1), new width and height, sum."""
import os
import random
import struct
import zlib

import numpy as np
from PIL import Image

from make_webp import fnv, waves

HERE = os.path.dirname(os.path.abspath(__file__))


def png_samples(path):
    """The samples of a PNG of 16 bits, [H][W][channels], decoded without PIL: all its rows have filter 0."""
    data, at, packed = open(path, "rb").read(), 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
        packed += body if kind == b"IDAT" else b""
        at += 12 + size
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels * 2)
    assert depth == 16 and not rows[:, 0].any()
    return rows[:, 1:].copy().view(">u2").reshape(height, width, channels).astype(np.uint16)


def luma(rgb):
    red, green, blue = (rgb[..., c].astype(np.uint64) for c in range(3))
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def to_channels(samples, channels, largest):
    """Samples of 1, 2 (grey, alpha), 3 or 4 channels as 1, 3 or 4."""
    have = samples.shape[2]
    alpha = samples[..., have - 1:] if have in (2, 4) else np.full(samples.shape[:2] + (1,), largest, samples.dtype)
    colour = samples[..., :3] if have >= 3 else np.repeat(samples[..., :1], 3, axis=2)
    if channels == 1:
        return (luma(colour)[..., None] if have >= 3 else samples[..., :1]).astype(samples.dtype)
    return colour if channels == 3 else np.concatenate([colour, alpha], axis=2)


def pil_samples(path, channels):
    image = Image.open(path)
    if image.mode == "P" and channels == 1:
        image = image.convert("RGB")
    out = np.asarray(image.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]))
    return out.reshape(out.shape[0], out.shape[1], channels)


def write_formats():
    names = sorted(n for n in os.listdir(HERE) if n.endswith((".png", ".jpg", ".webp")))
    with open(os.path.join(HERE, "formats.txt"), "w") as table:
        for name in names:
            path = os.path.join(HERE, name)
            if name in ("animated.webp", "rotated.webp", "rotated-lossy.webp"):
                continue
            for channels in (1, 3, 4):
                if "16" in name:
                    wide = to_channels(png_samples(path), channels, 65535)
                    high = (png_samples(path) >> 8).astype(np.uint8)
                    narrow = to_channels(high, channels, 255)
                else:
                    narrow = pil_samples(path, channels)
                    wide = narrow.astype(np.uint16) * 257
                print(name, channels, 8, fnv(narrow), file=table)
                print(name, channels, 16, fnv(wide.astype("<u2").view(np.uint8)), file=table)


def wide_waves(w, h, channels):
    """The same formula as in the C test: the bytes of two images of waves are the high and the low bytes."""
    y, x = np.mgrid[0:h, 0:w].astype(np.int64)
    return np.stack([(x * (300 + 71 * c) + y * (517 - 13 * c) + x * y * 7) % 65536 for c in range(channels)], axis=-1).astype(np.uint16)


def resize_case(channels, bits, w, h, box, size):
    image = wide_waves(w, h, channels)
    bands = []
    for c in range(channels):
        band = image[..., c] if bits == 16 else (image[..., c] >> 8).astype(np.uint8)
        made = Image.frombytes("I;16", (w, h), band.astype("<u2").tobytes()) if bits == 16 else Image.fromarray(band)
        bands.append(np.asarray(made.resize(size, Image.BILINEAR, box=box)))
    out = np.stack(bands, axis=-1)
    return fnv(out.astype("<u2").view(np.uint8) if bits == 16 else out)


def write_resizes():
    rng = random.Random(5)
    with open(os.path.join(HERE, "resize_formats.txt"), "w") as table:
        for channels, bits in ((1, 8), (4, 8), (1, 16), (3, 16), (4, 16)):
            for k in range(8):
                w, h = rng.randint(8, 90), rng.randint(8, 90)
                x0, y0 = rng.randint(0, w // 3), rng.randint(0, h // 3)
                x1, y1 = rng.randint(x0 + 2, w), rng.randint(y0 + 2, h)
                box = (0, 0, w, h) if k % 3 == 0 else (x0 + 0.25 * (k % 2), y0, x1, y1)
                size = (w, rng.randint(2, 60)) if k == 3 else (rng.randint(2, 60), rng.randint(2, 60))
                print(channels, bits, w, h, *box, *size, resize_case(channels, bits, w, h, box, size), file=table)


if __name__ == "__main__":
    write_formats()
    write_resizes()
