#!/usr/bin/env python3
"""multi-label-shapes.py: draws a small set of images with several labels each, for trying data.multi_label.

  scripts/multi-label-shapes.py FOLDER [TRAIN [VAL]]

Writes FOLDER/train.csv and FOLDER/val.csv with lines file,label1;label2 and the images (24 x 24 pixels, PNG). An image has
none to four of the figures disc, frame, cross and bars, each in a random colour at a random place. The images are the same
on every machine. Default: 480 training and 120 validation images.
"""
import random
import struct
import sys
import zlib
from pathlib import Path

SIDE, FIGURE = 24, 9


def inside(name, y, x):
    """Does the figure of FIGURE x FIGURE pixels cover the pixel y, x?"""
    middle = FIGURE // 2
    return {"disc": (y - middle) ** 2 + (x - middle) ** 2 <= middle**2 + 1,
            "frame": y in (0, FIGURE - 1) or x in (0, FIGURE - 1),
            "cross": abs(y - x) <= 1 or abs(y + x - FIGURE + 1) <= 1,
            "bars": y % 3 == 0}[name]


NAMES = ("bars", "cross", "disc", "frame")


def draw(rng):
    """The pixels of an image and the names of its figures, which do not overlap."""
    pixels = [[[rng.randrange(60) for _ in range(3)] for _ in range(SIDE)] for _ in range(SIDE)]
    names = [name for name in NAMES if rng.random() < 0.45]
    corners = [(y, x) for y in (0, SIDE // 2) for x in (0, SIDE // 2)]
    rng.shuffle(corners)
    for name, (top, left) in zip(names, corners):
        colour = [rng.randrange(120, 256) for _ in range(3)]
        top, left = top + rng.randrange(4), left + rng.randrange(4)
        for y in range(FIGURE):
            for x in range(FIGURE):
                if inside(name, y, x):
                    pixels[top + y][left + x] = colour
    return pixels, names


def png(pixels):
    rows = b"".join(b"\0" + bytes(value for pixel in row for value in pixel) for row in pixels)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def main():
    if not 2 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    folder, counts = Path(sys.argv[1]), [int(n) for n in sys.argv[2:]]
    train, val = (counts + [480, 120][len(counts):])[:2]
    rng = random.Random(1)
    for split, count in (("train", train), ("val", val)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        lines = ["file,labels"]
        for i in range(count):
            pixels, names = draw(rng)
            (folder / split / f"{i:04}.png").write_bytes(png(pixels))
            lines.append(f"{split}/{i:04}.png,{';'.join(names)}")
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")


main()
