"""Writes PNG files without libraries, for tests."""
import struct
import zlib


def write(path, width, height, pixel):
    """pixel(x, y) -> (red, green, blue); returns the pixels as a list."""
    pixels = [pixel(x, y) for y in range(height) for x in range(width)]
    rows = b"".join(b"\0" + bytes(c for p in pixels[y * width : (y + 1) * width] for c in p) for y in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    return pixels
