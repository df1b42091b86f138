"""Writes PNG files without libraries, for tests."""
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
