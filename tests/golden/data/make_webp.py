#!/usr/bin/python3
"""Writes the golden WebP images of this folder and their table with PIL, the reference for our decoder. Needs pillow with WebP and
numpy (pip install pillow numpy):

    python3 tests/golden/data/make_webp.py

webp.txt has the name, 3 channels, 8 bits, the upright size and the FNV-1a sum (64 bits) of the upright RGB bytes."""
import io
import os
import struct

import numpy as np
from PIL import Image, ImageOps

HERE = os.path.dirname(os.path.abspath(__file__))


def fnv(a):
    h = 0xCBF29CE484222325
    for b in np.ascontiguousarray(a, dtype=np.uint8).tobytes():
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return "%016x" % h


def waves(w, h):
    y, x = np.mgrid[0:h, 0:w].astype(np.int64)
    return np.stack([(x * (3 + c) + y * (5 - c) + (x * y) // 7) % 256 for c in range(3)], axis=-1).astype(np.uint8)


def exif(orientation):
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<HHHIHHI", 1, 0x0112, 3, 1, orientation, 0, 0)


def main():
    rgb = Image.fromarray(waves(29, 21))
    rgba = rgb.copy()
    rgba.putalpha(Image.fromarray(waves(29, 21)[..., 0]))
    cases = [
        ("lossless.webp", rgb, dict(lossless=True)),
        ("lossy.webp", rgb, dict(quality=70)),
        ("alpha.webp", rgba, dict(quality=80)),
        ("alpha-lossless.webp", rgba, dict(lossless=True, exact=True)),
        ("grey.webp", rgb.convert("L"), dict(lossless=True)),
        ("one.webp", Image.fromarray(waves(1, 1)), dict(lossless=True)),
        ("rotated.webp", rgb, dict(lossless=True, exif=exif(6))),
        ("rotated-lossy.webp", rgb, dict(quality=75, exif=exif(3))),
    ]
    with open(os.path.join(HERE, "webp.txt"), "w") as table:
        for name, image, options in cases:
            image.save(os.path.join(HERE, name), format="WEBP", **options)
            with Image.open(os.path.join(HERE, name)) as seen:
                upright = ImageOps.exif_transpose(seen).convert("RGB")
                table.write("%s 3 8 %d %d %s\n" % (name, upright.width, upright.height, fnv(np.asarray(upright))))
    frames = [Image.fromarray(np.roll(waves(16, 16), k, axis=0)) for k in range(3)]
    frames[0].save(os.path.join(HERE, "animated.webp"), format="WEBP", save_all=True, append_images=frames[1:], lossless=True)


if __name__ == "__main__":
    main()
