"""tiff.py: damaged and extreme TIFF and BMP files."""
import struct
import zlib

from .images import as_dataset, classify
from .support import add

S = "TIFF and BMP"
SHORT, LONG, ASCII, LONG8 = 3, 4, 2, 16


def tiff(width=8, height=8, bits=(8, 8, 8), photometric=2, compression=1, data=None, changes=(), order="<", pages=1, big=False,
         rows=None, next_page=None):
    """A TIFF of one strip a page. changes: {tag: (type, values)}, None removes a tag. next_page: offset of the next one."""
    samples, line = len(bits), (width * sum(bits) + 7) // 8 if width < 1 << 20 and height < 1 << 20 else 1
    if data is None:
        data = bytes(i * 7 % 256 for i in range(min(line * height, 1 << 16)))
        data = zlib.compress(data) if compression == 8 else data
    head = struct.calcsize(order + "2sHHHQ") if big else 8
    blob = bytearray(struct.pack(order + "2sHHHQ", b"II" if order == "<" else b"MM", 43, 8, 0, 0) if big else
                     struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, 0))
    link = 8 if big else 4
    assert len(blob) == head
    word, size = ("Q", 8) if big else ("I", 4)
    for page in range(pages):
        strip = len(blob)
        blob += data + b"\0" * (len(data) % 2)
        tags = {256: (LONG, [width]), 257: (LONG, [height]), 258: (SHORT, list(bits)), 259: (SHORT, [compression]),
                262: (SHORT, [photometric]), 273: (LONG, [strip]), 277: (SHORT, [samples]),
                278: (LONG, [rows or min(height, 0xffffffff)]), 279: (LONG, [len(data)])}
        tags.update(dict(changes))
        tags = {k: v for k, v in tags.items() if v}
        fields = []
        for tag, (kind, values) in sorted(tags.items()):
            packed = bytes(values) if kind == ASCII else struct.pack(
                order + {SHORT: "H", LONG: "I", LONG8: "Q"}[kind] * len(values), *values)
            if len(packed) > size:
                at = len(blob)
                blob += packed + b"\0" * (len(packed) % 2)
                packed = struct.pack(order + word, at)
            fields.append(struct.pack(order + "HH" + word, tag, kind, len(values)) + packed.ljust(size, b"\0"))
        at = len(blob)
        blob += struct.pack(order + ("Q" if big else "H"), len(fields)) + b"".join(fields)
        struct.pack_into(order + word, blob, link, at)
        link = len(blob)
        blob += struct.pack(order + word, at if next_page == "itself" else next_page or 0)
    return bytes(blob)


PAGES = tiff(pages=3)
FILES = {
    "as it should be": tiff(), "big endian": tiff(order=">"), "BigTIFF": tiff(big=True), "three pages": PAGES,
    "500 pages": tiff(pages=500), "a page that is its own next page": tiff(next_page="itself"),
    "a next page beyond the end": tiff(next_page=1 << 30), "deflate": tiff(compression=8),
    "the first directory beyond the end": b"II*\0\xff\xff\xff\x7f", "the first directory in the header": b"II*\0\4\0\0\0",
    "BigTIFF with a directory at 2^63": b"II+\0\x08\0\0\0" + struct.pack("<Q", 1 << 63),
    "only the header": tiff()[:8], "no tags": b"II*\0\x08\0\0\0\0\0\0\0\0\0",
    "65,535 tags": b"II*\0\x08\0\0\0\xff\xff" + bytes(12 * 100),
    "width 0": tiff(changes={256: (LONG, [0])}), "height 0": tiff(changes={257: (LONG, [0])}),
    "2^32 - 1 squared": tiff(changes={256: (LONG, [0xffffffff]), 257: (LONG, [0xffffffff])}),
    "65,535 squared": tiff(changes={256: (LONG, [65535]), 257: (LONG, [65535])}),
    "60,000 x 1": tiff(60000, 1), "1 x 60,000": tiff(1, 60000), "1 x 1": tiff(1, 1),
    "no width": tiff(changes={256: None}), "no strips": tiff(changes={273: None}), "no lengths": tiff(changes={279: None}),
    "no bits": tiff(changes={258: None}), "no photometric": tiff(changes={262: None}),
    "a strip beyond the end": tiff(changes={273: (LONG, [1 << 30])}),
    "a strip of 2^32 - 1 bytes": tiff(changes={279: (LONG, [0xffffffff])}), "a strip of no bytes": tiff(changes={279: (LONG, [0])}),
    "more strips than lengths": tiff(changes={273: (LONG, [8] * 9), 278: (LONG, [1])}),
    "2^20 strips": tiff(changes={273: (LONG, [8] * (1 << 20)), 279: (LONG, [1] * (1 << 20)), 278: (LONG, [1])}),
    "0 rows a strip": tiff(changes={278: (LONG, [0])}),
    "0 samples": tiff(changes={277: (SHORT, [0])}), "65,535 samples": tiff(changes={277: (SHORT, [65535])}),
    "0 bits": tiff(bits=(0, 0, 0), data=bytes(200)), "64 bits": tiff(bits=(64, 64, 64)), "32 bits": tiff(bits=(32, 32, 32)),
    "bits that differ": tiff(bits=(8, 16, 8)), "1 bit, grey": tiff(bits=(1,), photometric=0), "4 bits, grey": tiff(bits=(4,), photometric=1),
    "16 bits, grey": tiff(bits=(16,), photometric=1), "floating point": tiff(bits=(32,), photometric=1, changes={339: (SHORT, [3])}),
    "signed": tiff(bits=(16,), photometric=1, changes={339: (SHORT, [2])}),
    "a palette without colours": tiff(bits=(8,), photometric=3), "a short palette": tiff(bits=(8,), photometric=3, changes={320: (SHORT, [1, 2, 3])}),
    "a palette": tiff(bits=(8,), photometric=3, changes={320: (SHORT, [256 * (i % 256) for i in range(768)])}),
    "CMYK": tiff(bits=(8,) * 4, photometric=5), "RGBA": tiff(bits=(8,) * 4, changes={338: (SHORT, [2])}),
    "L*a*b*": tiff(photometric=8), "photometric 65,535": tiff(changes={262: (SHORT, [65535])}),
    "YCbCr without factors": tiff(photometric=6), "YCbCr, factors 0": tiff(photometric=6, changes={530: (SHORT, [0, 0])}),
    "YCbCr, factors 255": tiff(photometric=6, changes={530: (SHORT, [255, 255])}),
    "compression 65,000": tiff(compression=65000), "old JPEG without tables": tiff(compression=6), "JPEG without data": tiff(compression=7),
    "LZW of noise": tiff(compression=5), "deflate of noise": tiff(compression=8, data=bytes(range(200))),
    "CCITT of noise": tiff(bits=(1,), photometric=0, compression=4), "PackBits of noise": tiff(compression=32773),
    "a deflate bomb": tiff(20000, 20000, bits=(8,), photometric=1, data=zlib.compress(bytes(1 << 20)), compression=8),
    "tiles of 0 x 0": tiff(changes={322: (LONG, [0]), 323: (LONG, [0]), 324: (LONG, [8]), 325: (LONG, [8])}),
    "tiles of 2^31": tiff(changes={322: (LONG, [1 << 31]), 323: (LONG, [1 << 31]), 324: (LONG, [8]), 325: (LONG, [8])}),
    "planes": tiff(changes={284: (SHORT, [2]), 273: (LONG, [8, 72, 136]), 279: (LONG, [64, 64, 64])}),
    "planes that are missing": tiff(changes={284: (SHORT, [2])}),
    "orientation 6": tiff(4, 9, changes={274: (SHORT, [6])}), "orientation 65,535": tiff(changes={274: (SHORT, [65535])}),
    "a name with escape sequences": tiff(changes={269: (ASCII, b"\x1b]0;t\x07\n" * 50), 305: (ASCII, b"\xff" * 1000)}),
    "sub-directories that loop": tiff(changes={330: (LONG, [8] * 50)}), "EXIF beyond the end": tiff(changes={34665: (LONG, [1 << 30])}),
}


def bmp(width=8, height=8, bits=24, compression=0, offset=54, header=40, colours=0, data=None):
    line = (abs(width) * bits + 31) // 32 * 4 if abs(width) < 1 << 20 and abs(height) < 1 << 20 else 1
    data = bytes(i * 5 % 256 for i in range(min(line * abs(height), 1 << 16))) if data is None else data
    return struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 54 + len(data), 0, 0, offset, header, width, height, 1, bits, compression,
                       len(data), 2835, 2835, colours, 0) + data


BMPS = {
    "as it should be": bmp(), "from top to bottom": bmp(height=-8), "height -2^31": bmp(height=-(1 << 31)), "width 0": bmp(width=0),
    "width -8": bmp(width=-8), "2^31 - 1 squared": bmp((1 << 31) - 1, (1 << 31) - 1), "65,535 squared": bmp(65535, 65535),
    "0 bits": bmp(bits=0), "7 bits": bmp(bits=7), "32 bits": bmp(bits=32), "16 bits": bmp(bits=16), "8 bits without palette": bmp(bits=8),
    "8 bits, 2^31 colours": bmp(bits=8, colours=1 << 31), "1 bit": bmp(bits=1, offset=62, colours=2), "RLE": bmp(bits=8, compression=1),
    "bit fields without masks": bmp(bits=32, compression=3), "compression 99": bmp(compression=99), "JPEG inside": bmp(compression=4),
    "pixels beyond the end": bmp(offset=1 << 30), "pixels in the header": bmp(offset=0), "a header of 12 bytes": bmp(header=12),
    "a header of 2^32 - 1 bytes": bmp(header=0xffffffff), "cut": bmp()[:100], "only the header": bmp()[:54], "two bytes": b"BM",
}


def both(c, data, name):
    classify(c, data, "x" + name, deadline=30)
    as_dataset(c, data, name)


for title, blob in FILES.items():
    add(S, "TIFF, " + title, lambda c, d=blob: both(c, d, ".tif"))
for title, blob in BMPS.items():
    add(S, "BMP, " + title, lambda c, d=blob: both(c, d, ".bmp"))


def bits(c, blob, name, first):
    c.take("run")
    for i in range(first, len(blob) * 8, 97):
        bad = bytearray(blob)
        bad[i // 8] ^= 1 << i % 8
        c.write("x" + name, bytes(bad))
        c.run("predict", "run", "x" + name, "--json", deadline=30)


for first in range(0, 97, 12):
    add(S, "TIFF, flipped bits from %d on" % first, lambda c, n=first: bits(c, tiff(4, 4, compression=8, pages=2), ".tif", n))
    add(S, "BMP, flipped bits from %d on" % first, lambda c, n=first: bits(c, bmp(4, 4), ".bmp", n))
