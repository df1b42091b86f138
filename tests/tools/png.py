"""Writes and reads PNG files without libraries, for tests."""
import struct
import zlib


def write(path, width, height, pixel, bits=8):
    """pixel(x, y) -> (red, green, blue), or (grey,), or with alpha (red, green, blue, alpha); returns the pixels as a list. bits: of a
    sample, 8 or 16."""
    pixels = [pixel(x, y) for y in range(height) for x in range(width)]
    rows = b"".join(b"\0" + b"".join(c.to_bytes(bits // 8, "big") for p in pixels[y * width : (y + 1) * width] for c in p) for y in range(height))
    colour = {1: 0, 3: 2, 4: 6}[len(pixels[0])]

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    return pixels


def read(path):
    """(width, height, pixels as a list) of a PNG of 8-bit RGB that is not interlaced."""
    data, at, packed = open(path, "rb").read(), 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height, bits, colour = struct.unpack(">IIBB", data[at + 8:at + 18])
            assert (bits, colour) == (8, 2)
        packed += data[at + 8:at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    rows, before, pixels = zlib.decompress(packed), bytearray(3 * width + 3), []
    for y in range(height):
        method, row = rows[y * (3 * width + 1)], bytearray(3) + rows[y * (3 * width + 1) + 1:(y + 1) * (3 * width + 1)]
        for i in range(3, len(row)):  # the first pixel of `row` and `before` is one outside of the image
            a, b, c = row[i - 3], before[i], before[i - 3]
            paeth = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            row[i] = (row[i] + (0, a, b, (a + b) // 2, paeth)[method]) & 255
        pixels += [tuple(row[i:i + 3]) for i in range(3, len(row), 3)]
        before = row
    return width, height, pixels
