#!/usr/bin/env python3
"""unbalanced-cifar10.py: makes an unbalanced (long-tailed) dataset from CIFAR-10 in its binary form.

    scripts/unbalanced-cifar10.py CIFAR10_FOLDER OUT_FOLDER [--ratio 100] [--val 1000]

OUT_FOLDER gets train/ and val/ with a folder of PNG files for each class. Class k of the ten keeps the first 5000 * ratio^(-k/9)
training images (Cui et al., 2019: CIFAR-10-LT), with --ratio 100 from 5000 airchannels to 50 trucks, 12,406 images in all. val/ has the
first --val test images of each class, so that its accuracy is the macro recall.
"""
import argparse
import struct
import sys
import zlib
from pathlib import Path

NAMES = "airplane automobile bird cat deer dog frog horse ship truck".split()
SIDE, PIXELS, RECORD = 32, 1024, 3073


def png(channels):
    """The bytes of a PNG file from the red, green and blue channels of a record."""
    rows = bytearray()
    for y in range(SIDE):
        rows.append(0)
        for x in range(y * SIDE, (y + 1) * SIDE):
            rows += bytes((channels[x], channels[PIXELS + x], channels[2 * PIXELS + x]))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(rows), 1)) + chunk(b"IEND", b"")


def write(files, folder, limits):
    """Writes the first limits[k] images of each class k."""
    counts = [0] * len(NAMES)
    for name in NAMES:
        (folder / name).mkdir(parents=True)
    for file in files:
        data = file.read_bytes()
        if len(data) != 10000 * RECORD:
            sys.exit("%s: %d bytes, must be %d" % (file, len(data), 10000 * RECORD))
        for at in range(0, len(data), RECORD):
            label = data[at]
            if counts[label] < limits[label]:
                (folder / NAMES[label] / ("%04d.png" % counts[label])).write_bytes(png(data[at + 1:at + RECORD]))
                counts[label] += 1
    print("%s: %s" % (folder, ", ".join("%s %d" % pair for pair in zip(NAMES, counts))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cifar", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--ratio", type=float, default=100)
    parser.add_argument("--val", type=int, default=1000)
    args = parser.parse_args()
    limits = [int(5000 * args.ratio ** (-k / 9)) for k in range(10)]
    write([args.cifar / ("data_batch_%d.bin" % n) for n in range(1, 6)], args.out / "train", limits)
    write([args.cifar / "test_batch.bin"], args.out / "val", [args.val] * 10)


main()
