#!/usr/bin/python3
"""Writes the golden TIFF and BMP images of this folder and their table with PIL, the reference for our decoders. Needs Pillow (12 or newer; the
table was made with 13.0), numpy, and tifffile and imagecodecs to write what Pillow cannot (tiles, planes, big-endian files):

    pip install pillow numpy tifffile imagecodecs; python3 tests/golden/data/make_tiff.py

tiff.txt: name, channels, bits, width and height, FNV-1a sum (64 bits) of the upright samples, those of 16 bits in little-endian order. PIL has
8 bits of each channel, and 16 bits of grey. 16 bits of colours are those that were written."""
import os
import struct

import numpy as np
import tifffile
from PIL import Image

from make_formats import to_channels, wide_waves
from make_webp import fnv, waves

HERE = os.path.dirname(os.path.abspath(__file__))
W, H = 29, 21


def here(name):
    return os.path.join(HERE, name)


def tiff(name, a, **options):
    options.setdefault("photometric", "minisblack" if a.ndim == 2 else "rgb")
    tifffile.imwrite(here(name), a, metadata=None, software=None, **options)


def pillow(name, image, **options):
    image.save(here(name), **options)


def write_tiffs():
    rgb, wide = waves(W, H), wide_waves(W, H, 4)
    grey, alpha = rgb[..., 0].copy(), rgb[..., 1].copy()
    image = Image.fromarray(rgb)
    tiff("grey-lzw.tif", grey, compression="lzw", predictor=True, rowsperstrip=4)
    tiff("grey16-deflate.tif", wide[..., 0].copy(), compression="zlib", predictor=True, rowsperstrip=5)
    tiff("grey16-tiles-big.tif", wide[..., 0].copy(), tile=(16, 16), byteorder=">")
    tiff("white-is-zero.tif", grey, photometric="miniswhite")
    tiff("rgb-planes-lzw.tif", np.moveaxis(rgb, -1, 0).copy(), planarconfig="separate", compression="lzw", rowsperstrip=8)
    tiff("rgb-tiles-planes.tif", np.moveaxis(rgb, -1, 0).copy(), planarconfig="separate", compression="zlib", tile=(16, 16))
    tiff("rgb-tiles.tif", rgb, tile=(16, 32), compression="packbits")
    tiff("rgb-bigtiff.tif", rgb, bigtiff=True)
    tiff("rgb16-big.tif", wide[..., :3].copy(), byteorder=">", compression="lzw")
    tiff("rgba16-planes.tif", np.moveaxis(wide, -1, 0).copy(), planarconfig="separate", extrasamples=["unassalpha"], compression="zlib")
    tiff("rgba.tif", np.dstack([rgb, alpha]), extrasamples=["unassalpha"], compression="zlib")
    tiff("rgba-premultiplied.tif", np.dstack([np.minimum(rgb, alpha[..., None]), alpha]), extrasamples=["assocalpha"])
    tiff("la.tif", np.dstack([grey, alpha]), photometric="minisblack", planarconfig="contig", extrasamples=["unassalpha"])
    tiff("jpeg-tiles.tif", waves(64, 48), tile=(32, 32), compression="jpeg", photometric="ycbcr", subsampling=(2, 2))
    tiff("jpeg-rgb.tif", waves(64, 48), compression="jpeg", rowsperstrip=16)
    tiff("zstd.tif", rgb, compression="zstd")
    pillow("jpeg-strips.tif", Image.fromarray(waves(64, 48)), compression="jpeg", quality=80)
    pillow("bilevel-g4.tif", image.convert("1"), compression="group4")
    pillow("bilevel-packbits.tif", image.convert("1"), compression="packbits")
    pillow("palette.tif", image.quantize(200), compression="tiff_lzw")
    pillow("cmyk.tif", Image.fromarray(np.dstack([rgb, alpha // 2]), "CMYK"), compression="tiff_adobe_deflate")
    write_packed("grey4.tif", grey >> 4, 4, 1)
    write_packed("grey2-white.tif", grey >> 6, 2, 0)
    write_packed("palette4.tif", grey >> 4, 4, 3)
    for orientation in range(2, 9):
        pillow("turned%d.tif" % orientation, Image.fromarray(waves(7, 5)), tiffinfo={0x0112: orientation})
    # read as its first page; not read
    tiff("pages.tif", np.stack([waves(9, 6), waves(9, 6)[::-1], waves(9, 6)[:, ::-1]]))
    tiff("float.tif", grey.astype(np.float32) / 255)
    tiff("signed16.tif", wide[..., 0].astype(np.int16))
    tiff("five-channels.tif", np.dstack([grey] * 5), photometric="minisblack", planarconfig="contig")
    tiff("lzma.tif", rgb, compression="lzma")


def write_packed(name, values, bits, photometric):
    """An uncompressed TIFF of less than 8 bits a sample, whose palette is a ramp of colours."""
    h, w = values.shape
    per = 8 // bits
    padded = np.pad(values, ((0, 0), (0, -w % per))).reshape(h, -1, per)
    rows = np.zeros(padded.shape[:2], np.uint8)
    for k in range(per):
        rows |= (padded[..., k] << (8 - bits * (k + 1))).astype(np.uint8)
    tags = [(256, 3, w), (257, 3, h), (258, 3, bits), (259, 3, 1), (262, 3, photometric), (273, 4, 0), (277, 3, 1), (278, 3, h), (279, 4, rows.size)]
    colours = [(k * 4099 + c * 20011) % 65536 for c in range(3) for k in range(1 << bits)] if photometric == 3 else []
    count = len(tags) + bool(colours)
    end = 8 + 2 + 12 * count + 4
    tags = [(t, k, end + 2 * len(colours)) if t == 273 else (t, k, v) for t, k, v in tags]
    body = b"".join(struct.pack("<HHII", t, k, 1, v) for t, k, v in tags)
    if colours:
        body += struct.pack("<HHII", 320, 3, len(colours), end)
    with open(here(name), "wb") as f:
        f.write(b"II*\0" + struct.pack("<IH", 8, count) + body + struct.pack("<I", 0) + struct.pack("<%dH" % len(colours), *colours) + rows.tobytes())


def bmp(name, rows, bits, w, h, head=40, compression=0, extra=b"", colours=0):
    """A BMP of these rows of bytes, each padded to 4; h < 0: from the top. extra: masks, or the palette."""
    data = b"".join(r + b"\0" * (-len(r) % 4) for r in rows)
    start = 14 + head + len(extra)
    if head == 12:
        info = struct.pack("<IHHHH", head, w, h, 1, bits)
    else:
        info = struct.pack("<IiiHHIIiiII", head, w, h, 1, bits, compression, len(data), 0, 0, colours, 0)
    if head > 40:
        info, extra, start = info + extra + b"\0" * (head - 40 - len(extra)), b"", 14 + head
    with open(here(name), "wb") as f:
        f.write(b"BM" + struct.pack("<IHHI", start + len(data), 0, 0, start) + info + extra + data)


def write_bmps():
    rgb, v16 = waves(W, H), wide_waves(W, H, 1)[..., 0]
    index = (rgb[..., 0] >> 4).astype(np.uint8)
    palette = b"".join(bytes([(k * 31) % 256, (k * 57) % 256, (k * 91) % 256, 0]) for k in range(256))
    v32 = np.dstack([rgb, waves(W, H)[..., 1]]).copy().view("<u4")[..., 0]
    rows16, rows32 = [r.astype("<u2").tobytes() for r in v16], [r.astype("<u4").tobytes() for r in v32]
    packed = [bytes((int(a) << 4 | int(b)) for a, b in zip(r[::2], np.append(r[1::2], [0] * (len(r) % 2)))) for r in index]
    Image.fromarray(rgb).save(here("rgb.bmp"))
    Image.fromarray(rgb[..., 0]).save(here("grey.bmp"))
    Image.fromarray(rgb).convert("1").save(here("bilevel.bmp"))
    bmp("palette4.bmp", packed, 4, W, H, extra=palette[:64])
    bmp("palette8-few.bmp", [r.tobytes() for r in index], 8, W, H, extra=palette[:64], colours=16)
    bmp("os2.bmp", [r.tobytes() for r in index], 8, W, H, head=12, extra=b"".join(palette[4 * k:4 * k + 3] for k in range(256)))
    bmp("rgb555.bmp", rows16, 16, W, H)
    bmp("rgb565.bmp", rows16, 16, W, H, compression=3, extra=struct.pack("<3I", 0xF800, 0x7E0, 0x1F))
    bmp("rgbx.bmp", rows32, 32, W, -H)
    bmp("rgba.bmp", rows32, 32, W, H, head=56, compression=3, extra=struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000))
    bmp("abgr-top.bmp", rows32, 32, W, -H, head=124, compression=3, extra=struct.pack("<4I", 0xFF000000, 0xFF0000, 0xFF00, 0xFF))
    with open(here("rle8.bmp"), "wb") as f:  # not read
        f.write(b"BM" + struct.pack("<IHHI", 66, 0, 0, 62) + struct.pack("<IiiHHIIiiII", 40, 2, 1, 1, 8, 1, 4, 0, 0, 2, 0) + palette[:8] + bytes([2, 1, 0, 1]))


def samples_of(name, channels):
    """(8 bits, 16 bits or None)"""
    image = Image.open(here(name))
    if image.mode.startswith("I;16"):  # or I;16B
        image.load()
        wide = np.asarray(image).astype(np.uint16)[..., None]
        return to_channels((wide >> 8).astype(np.uint8), channels, 255), to_channels(wide, channels, 65535)
    if "16" in name and name.startswith("rgb"):
        wide = wide_waves(W, H, 4)[..., :4 if "rgba" in name else 3]
        return to_channels((wide >> 8).astype(np.uint8), channels, 255), to_channels(wide, channels, 65535)
    if channels == 1 and image.mode not in ("1", "L", "LA"):
        image = image.convert("RGBA" if image.mode == "RGBA" else "RGB")  # no shorter way to grey
    narrow = np.asarray(image.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]))
    narrow = narrow.reshape(narrow.shape[0], narrow.shape[1], channels)
    return narrow, narrow.astype(np.uint16) * 257


def main():
    write_tiffs()
    write_bmps()
    unread = ("float.tif", "signed16.tif", "five-channels.tif", "lzma.tif", "rle8.bmp")
    with open(here("tiff.txt"), "w") as table:
        for name in sorted(n for n in os.listdir(HERE) if n.endswith((".tif", ".bmp")) and n not in unread):
            for channels in (1, 3, 4):
                narrow, wide = samples_of(name, channels)
                size = narrow.shape[1], narrow.shape[0]
                print(name, channels, 8, *size, fnv(narrow), file=table)
                print(name, channels, 16, *size, fnv(wide.astype("<u2").view(np.uint8)), file=table)


if __name__ == "__main__":
    main()
