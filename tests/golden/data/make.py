#!/usr/bin/python3
"""Writes the golden images and tables of this folder with PIL and torchvision, the references for our decoders, resizing and
cropping. Debian 12: apt install python3-pil python3-torchvision; then

    python3 tests/golden/data/make.py [FOLDER OF SAMPLE JPEGS]

Sums are FNV-1a (64 bits) over RGB bytes. With a folder it also writes photos.txt, the sums of photos that
are not in the repository."""
import io
import os
import random
import struct
import sys
import zlib

import numpy as np
from PIL import Image
from torchvision import transforms

from make_webp import fnv

HERE = os.path.dirname(os.path.abspath(__file__))


def test_image(w, h):
    """Smooth waves with a noisy part; the C tests have the same formula."""
    y, x = np.mgrid[0:h, 0:w].astype(np.int64)
    out = np.zeros((h, w, 3), np.int64)
    for c in range(3):
        out[..., c] = (x * (3 + c) + y * (5 - c) + (x * y) // 7) % 256
        noisy = (x // 5 + y // 3) % 4 == 0
        out[..., c] = np.where(noisy, (x * 7919 + y * 104729 + c * 1299709) // 13 % 256, out[..., c])
    return out.astype(np.uint8)


def decode_cases():
    rgb = Image.fromarray(test_image(29, 21))
    smooth = rgb.resize((19, 13), Image.BILINEAR).resize((29, 21), Image.BILINEAR)
    for mode in ("RGB", "L", "CMYK"):
        for progressive in (False, True):
            name = "%s%s.jpg" % (mode.lower(), "-progressive" if progressive else "")
            yield name, smooth.convert(mode), dict(format="JPEG", progressive=progressive, quality=75)
    yield "rgb-444.jpg", smooth, dict(format="JPEG", subsampling=0, quality=60)
    yield "rgb-422.jpg", smooth, dict(format="JPEG", subsampling=1, quality=60)
    for mode in ("RGB", "L", "LA", "RGBA", "1"):
        image = smooth.convert(mode)
        if "A" in mode:
            image.putalpha(Image.fromarray(test_image(29, 21)[..., 0]))
        yield "%s.png" % mode.lower(), image, dict(format="PNG")
    for bits in (1, 2, 4, 8):
        yield "palette%d.png" % bits, smooth.quantize(2 ** bits), dict(format="PNG", bits=bits)
    yield "palette-transparent.png", smooth.quantize(16), dict(format="PNG", transparency=3)


def png_by_hand(a, colour, depth, adam7=False):
    """Writes files that PIL cannot write: 16-bit colour and interlaced, without filters."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    h, w = a.shape[:2]
    rows = b""
    for x, y, dx, dy in passes if adam7 else [(0, 0, 1, 1)]:
        part = a[y::dy, x::dx]
        if part.size:
            rows += b"".join(b"\0" + row.astype(">u2" if depth == 16 else ">u1").tobytes() for row in part)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, adam7))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def make_decode():
    lines = []
    for name, image, options in decode_cases():
        data = io.BytesIO()
        image.save(data, **options)
        open(os.path.join(HERE, name), "wb").write(data.getvalue())
        rgb = np.array(Image.open(data).convert("RGB"))
        lines.append("%s %d %d %s" % (name, rgb.shape[1], rgb.shape[0], fnv(rgb)))
    deep = test_image(17, 9).astype(np.int64) * 256 + test_image(9, 17).transpose(1, 0, 2)
    deep = np.concatenate([deep, deep[..., :1] ^ 0x5A5A], axis=2)
    flat = test_image(29, 21)
    for name, data in (("rgb16.png", png_by_hand(deep[..., :3], 2, 16)), ("rgba16.png", png_by_hand(deep, 6, 16)),
                       ("la16.png", png_by_hand(deep[..., :2], 4, 16)), ("rgb-adam7.png", png_by_hand(flat, 2, 8, True)),
                       ("l-adam7-tiny.png", png_by_hand(flat[:2, :3, :1], 0, 8, True))):
        open(os.path.join(HERE, name), "wb").write(data)
        rgb = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
        lines.append("%s %d %d %s" % (name, rgb.shape[1], rgb.shape[0], fnv(rgb)))
    # 16-bit grey: PIL clips such images to 255 on convert("RGB"); we keep the high byte, as for colour.
    open(os.path.join(HERE, "grey16.png"), "wb").write(png_by_hand(deep[..., :1], 0, 16))
    lines.append("grey16.png 17 9 " + fnv(np.repeat(deep[..., :1] >> 8, 3, axis=2)))
    open(os.path.join(HERE, "decode.txt"), "w").write("\n".join(lines) + "\n")


def make_resize():
    """width height  x0 y0 x1 y1  out_width out_height  sum"""
    rng = random.Random(7)
    lines = []
    for i in range(80):
        w, h = rng.choice([(61, 47), (rng.randint(1, 90), rng.randint(1, 90)), (rng.randint(100, 400), rng.randint(1, 40))])
        ow, oh = rng.randint(1, 64), rng.randint(1, 64)
        box = (0, 0, w, h)
        if i % 4 == 1:
            x, y = rng.randint(0, w - 1), rng.randint(0, h - 1)
            box = (x, y, rng.randint(x + 1, w), rng.randint(y + 1, h))
        elif i % 4 == 2:  # quarters are exact in every float
            x, y = rng.randint(0, 4 * w - 1) / 4, rng.randint(0, 4 * h - 1) / 4
            box = (x, y, x + rng.randint(1, int(4 * (w - x))) / 4, y + rng.randint(1, int(4 * (h - y))) / 4)
        elif i % 8 == 3:
            box, ow = (0, 1 if h > 1 else 0, w, h), w
        elif i % 8 == 7:
            box, oh = (w // 3, 0, w, h), h
        out = Image.fromarray(test_image(w, h)).resize((ow, oh), Image.BILINEAR, box=box)
        lines.append("%d %d %g %g %g %g %d %d %s" % ((w, h) + box + (ow, oh, fnv(np.array(out)))))
    open(os.path.join(HERE, "resize.txt"), "w").write("\n".join(lines) + "\n")


def make_eval():
    """width height  short side  crop  sum: torchvision's Resize and CenterCrop"""
    lines = []
    cases = [(50, 40, 36, 32), (40, 50, 36, 32), (33, 33, 32, 32), (32, 32, 32, 32), (37, 91, 36, 31), (91, 37, 37, 32),
             (20, 30, 24, 32), (64, 48, 48, 48), (500, 375, 256, 224), (75, 56, 256, 224), (1, 9, 8, 8), (9, 1, 8, 8),
             (35, 35, 35, 32), (35, 38, 35, 32), (10, 100, 5, 12), (100, 10, 5, 12), (61, 47, 47, 40)]
    for w, h, short, crop in cases:
        image = Image.fromarray(test_image(w, h))
        out = transforms.CenterCrop(crop)(transforms.Resize(short)(image))
        lines.append("%d %d %d %d %s" % (w, h, short, crop, fnv(np.array(out))))
    open(os.path.join(HERE, "eval.txt"), "w").write("\n".join(lines) + "\n")


def make_photos(folder):
    lines = []
    for name in sorted(os.listdir(folder)):
        image = Image.open(os.path.join(folder, name)).convert("RGB")
        eval_sum = fnv(np.array(transforms.CenterCrop(224)(transforms.Resize(256)(image))))
        lines.append("%s %d %d %s %s" % (name, image.width, image.height, fnv(np.array(image)), eval_sum))
    open(os.path.join(HERE, "photos.txt"), "w").write("\n".join(lines) + "\n")


def make_rectangle():
    """Lines of rectangle.txt: W H HEIGHT WIDTH COVER sum: the image of W x H, resized to cover a rectangle of height COVER and of the shape of the
    result, and its centre of HEIGHT x WIDTH. COVER 0: the whole image resized to HEIGHT x WIDTH."""
    lines = []
    for w, h, height, width, cover in ((50, 40, 24, 40, 28), (40, 50, 24, 40, 28), (50, 30, 24, 40, 24), (33, 90, 40, 16, 45), (60, 36, 18, 30, 27),
                                       (64, 64, 20, 48, 23), (50, 40, 24, 40, 0), (31, 77, 20, 48, 0)):
        full_w, full_h = cover * width // height, cover
        if w * full_h > full_w * h:
            full_w = w * full_h // h
        elif cover:
            full_h = h * full_w // w
        one = transforms.functional.resize(Image.fromarray(test_image(w, h)), (full_h, full_w) if cover else (height, width))
        out = transforms.functional.center_crop(one, (height, width)) if cover else one
        lines.append("%d %d %d %d %d %s" % (w, h, height, width, cover, fnv(np.array(out))))
    open(os.path.join(HERE, "rectangle.txt"), "w").write("\n".join(lines) + "\n")


def make_fit():
    """Lines of fit.txt: FIT W H HEIGHT WIDTH sum: the image of W x H squashed or letterboxed to HEIGHT x WIDTH. The border has the colour
    (124, 116, 104), which is ImageNet's mean in bytes."""
    lines = []
    for w, h, height, width in ((50, 40, 24, 24), (40, 50, 24, 24), (24, 24, 24, 24), (90, 9, 24, 24), (9, 90, 24, 24), (500, 3, 16, 16), (1, 200, 16, 16),
                                (5, 3, 32, 32), (1, 1, 8, 8), (33, 90, 40, 16), (64, 64, 20, 48), (61, 35, 17, 23), (50, 37, 24, 24), (37, 50, 24, 24)):
        image = Image.fromarray(test_image(w, h))
        wide = w * height > h * width
        inner = (width, max(width * h // w, 1)) if wide else (max(height * w // h, 1), height)
        framed = Image.new("RGB", (width, height), (124, 116, 104))
        framed.paste(image.resize(inner, Image.BILINEAR), ((width - inner[0]) // 2, (height - inner[1]) // 2))
        for fit, out in (("squash", image.resize((width, height), Image.BILINEAR)), ("letterbox", framed)):
            lines.append("%s %d %d %d %d %s" % (fit, w, h, height, width, fnv(np.array(out))))
    open(os.path.join(HERE, "fit.txt"), "w").write("\n".join(lines) + "\n")


make_decode()
make_resize()
make_rectangle()
make_fit()
make_eval()
if len(sys.argv) > 1:
    make_photos(sys.argv[1])
