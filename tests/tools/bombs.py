"""Small image files that need much memory or time, written without image libraries: for tests. Each function returns the bytes of a file."""
import struct
import zlib


def png(width, height, depth=8, colour=2, interlaced=False, chunks=(), after=0):
    """A black image; `chunks`: further chunks (kind, data) before the pixels; after: MiB of zeros behind the last row."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    adam7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    deflate, data = zlib.compressobj(9), b""
    for x, y, dx, dy in adam7 if interlaced else ((0, 0, 1, 1),):
        row, rows = bytes(1 + ((width - x + dx - 1) // dx * channels * depth + 7) // 8), (height - y + dy - 1) // dy
        while rows > 0:
            some = min(rows, max(1, (1 << 20) // len(row)))
            data += deflate.compress(row * some)
            rows -= some
    if after:  # a full flush ends a block that does not refer to others: it can be repeated
        data += deflate.flush(zlib.Z_FULL_FLUSH)
        data += (deflate.compress(bytes(1 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)) * after
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    palette = chunk(b"PLTE", bytes(6)) if colour == 3 else b""
    more = b"".join(chunk(*c) for c in chunks)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + palette + more + chunk(b"IDAT", data + deflate.flush()) + chunk(b"IEND", b"")


def zeros_chunk(kind, count):
    """A zTXt or iCCP chunk that unpacks to `count` zeros."""
    return kind, b"name\0\0" + zlib.compress(bytes(count), 9)


def riff(kind, data):
    chunk = kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def lossless_webp(width, height):
    """One colour: each of five prefix codes has one symbol, and a pixel takes no bit."""
    value, bits = 0x2F | (width - 1) << 8 | (height - 1) << 22, 8 + 28 + 4 + 3
    for _ in range(5):  # a simple code, of one symbol of one bit, which is 0
        value, bits = value | 1 << bits, bits + 4
    return riff(b"VP8L", value.to_bytes((bits + 7) // 8 + 4, "little"))


def canvas_webp(width, height):
    """The head of an extended file, which names the canvas, without an image."""
    return riff(b"VP8X", bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"))


def segment(marker, data):
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data


def jpeg(width, height, frame, scans, components=3, sampling=(0x11,) * 4):
    """frame: 0xC0 baseline, 0xC2 progressive; 0xC9 and 0xCA the same with arithmetic coding."""
    parts = b"".join(bytes((i + 1, sampling[i], 0)) for i in range(components))
    head = segment(0xDB, b"\0" + b"\1" * 64) + segment(frame, struct.pack(">BHHB", 8, height, width, components) + parts)
    return b"\xff\xd8" + head + b"".join(scans) + b"\xff\xd9"


def scan(components, first, last, data=b"", bits=0):
    """Coefficients first to last. Arithmetic coding reads zeros after the data, so that no data is a whole scan; bits: Ah and Al."""
    return segment(0xDA, bytes((len(components),)) + b"".join(bytes((c, 0)) for c in components) + bytes((first, last, bits))) + data


def arithmetic_jpeg(width, height, scans, components=3, sampling=(0x11,) * 4):
    everything = [scan(range(1, components + 1), 0, 0)]
    return jpeg(width, height, 0xCA, everything + [scan([1 + i % components], 1, 63) for i in range(scans)], components, sampling)


def packed_bits(text):
    text += "1" * (-len(text) % 8)
    return b"".join(b"\xff\0" if byte == b"\xff" else byte for byte in (bytes((int(text[i : i + 8], 2),)) for i in range(0, len(text), 8)))


def huffman_jpeg(width, height, scans):
    """A grey progressive image whose scans of AC coefficients are runs of up to 32,767 empty blocks, two bytes each."""
    tables = segment(0xC4, b"\0\1" + bytes(15) + b"\0") + segment(0xC4, b"\x10\1\1" + bytes(14) + b"\xe0\0")
    blocks = (width + 7) // 8 * ((height + 7) // 8)
    runs, left = "", blocks
    while left >= 1 << 14:
        some = min(left, (1 << 15) - 1)
        runs, left = runs + "0" + format(some - (1 << 14), "014b"), left - some
    empty = scan([1], 1, 63, packed_bits(runs + "10" * left))
    return jpeg(width, height, 0xC2, [tables + scan([1], 0, 0, packed_bits("0" * blocks))] + [empty] * scans, 1)


def baseline_jpeg(width, height):
    """A grey image of one colour: two bits for each block."""
    tables = segment(0xC4, b"\0\1" + bytes(15) + b"\0") + segment(0xC4, b"\x10\1" + bytes(15) + b"\0")
    return jpeg(width, height, 0xC0, [tables + scan([1], 0, 63, packed_bits("00" * ((width + 7) // 8 * ((height + 7) // 8))))], 1)


def tiff(width, height, tile=None, data=b"", blocks=1, bits=8):
    """A deflate-compressed RGB TIFF whose strips or tiles are all `data`."""
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, bits), (259, 3, 1, 8), (262, 3, 1, 2), (277, 3, 1, 3)]
    start = 8 + 2 + 12 * 10 + 4
    places, sizes, at = start, start + 4 * blocks, start + 8 * blocks
    inline = blocks == 1
    offsets, counts = (324, 325) if tile else (273, 279)
    tags += [(322, 4, 1, tile[0]), (323, 4, 1, tile[1])] if tile else [(278, 4, 1, (height + blocks - 1) // blocks), (284, 3, 1, 1)]
    tags += [(offsets, 4, blocks, at if inline else places), (counts, 4, blocks, len(data) if inline else sizes)]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags))
    return (b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + struct.pack("<I", at) * blocks
            + struct.pack("<I", len(data)) * blocks + data)


def bmp(width, height, bits):
    return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 62, 0, 0, 62, 40, width, height, 1, bits, 0, 0, 0, 0, 0, 0) + bytes(1000)


def all_bombs():
    """(file name, bytes, may it be decoded?) of more than ten files for each format."""
    text, profile = zeros_chunk(b"zTXt", 100 << 20), zeros_chunk(b"iCCP", 100 << 20)
    yield "webp-lossless-16383.webp", lossless_webp(16383, 16383), False
    yield "webp-lossless-13377.webp", lossless_webp(13377, 13377), False
    yield "webp-lossless-10000.webp", lossless_webp(10000, 10000), False
    yield "webp-lossless-6000.webp", lossless_webp(6000, 6000), True
    yield "webp-lossless-4000.webp", lossless_webp(4000, 4000), True
    yield "webp-lossless-wide.webp", lossless_webp(16383, 1), True
    yield "webp-lossless-tall.webp", lossless_webp(1, 16383), True
    yield "webp-lossless-flat.webp", lossless_webp(16383, 2000), True
    yield "webp-canvas.webp", canvas_webp(1 << 24, 255), False
    yield "webp-canvas-tall.webp", canvas_webp(255, 1 << 24), False
    yield "webp-canvas-16383.webp", canvas_webp(16383, 16383), False
    yield "jpeg-arithmetic-16383.jpg", arithmetic_jpeg(16383, 16383, 200), False
    yield "jpeg-arithmetic-5000.jpg", arithmetic_jpeg(5000, 5000, 3), False
    yield "jpeg-arithmetic-4000.jpg", arithmetic_jpeg(4000, 4000, 3), True
    yield "jpeg-arithmetic-400-scans.jpg", arithmetic_jpeg(4000, 4000, 400), False
    yield "jpeg-498-scans.jpg", huffman_jpeg(5000, 5000, 498), False
    yield "jpeg-400-scans.jpg", huffman_jpeg(10000, 10000, 400), False
    yield "jpeg-5000-scans.jpg", huffman_jpeg(64, 64, 5000), True
    yield "jpeg-cmyk.jpg", arithmetic_jpeg(5000, 5000, 8, 4), False
    yield "jpeg-sampling.jpg", arithmetic_jpeg(4000, 4000, 3, 3, (0x11, 0x24, 0x11)), True
    yield "jpeg-sequential.jpg", jpeg(9000, 9000, 0xC9, [scan([1, 2, 3], 0, 63)]), False
    yield "jpeg-tall.jpg", arithmetic_jpeg(8, 32000, 400), True
    yield "jpeg-solid-8000.jpg", baseline_jpeg(8000, 8000), True
    yield "jpeg-solid-12000.jpg", baseline_jpeg(12000, 12000), False
    late = b"\x78\x01" + b"\0\0\0\xff\xff" * 5000  # deflate blocks without content
    yield "tiff-13000.tif", tiff(13000, 13000, data=zlib.compress(bytes(1 << 20))), False
    yield "tiff-large-tile.tif", tiff(16, 16, (32000, 32000), zlib.compress(bytes(1 << 20))), False
    yield "tiff-same-tiles.tif", tiff(4000, 4000, (16, 16), late + zlib.compress(bytes(768))[2:], 62500), False
    yield "tiff-same-strips.tif", tiff(4000, 4000, None, late + zlib.compress(bytes(12000))[2:], 4000), False
    yield "tiff-dots.tif", tiff(9000, 9000, (1, 1), zlib.compress(bytes(3))), False
    yield "bmp-13000.bmp", bmp(13000, 13000, 24), False
    yield "bmp-32000-bits.bmp", bmp(32000, 5000, 1), False
    yield "png-16000.png", png(16000, 16000), False
    yield "png-13377.png", png(13377, 13377), False
    yield "png-9000-bits.png", png(9000, 9000, 1, 0), True
    yield "png-9000-palette.png", png(9000, 9000, 1, 3), True
    yield "png-9000-interlaced.png", png(9000, 9000, 1, 0, True), True
    yield "png-5700-rgba16-interlaced.png", png(5700, 5700, 16, 6, True), True
    yield "png-12000-rgba16.png", png(12000, 12000, 16, 6), False
    yield "png-wide.png", png(32768, 2700, 1, 0), True
    yield "png-tall.png", png(1, 32768, 8, 2), True
    yield "png-long.png", png(1000000, 100, 1, 0), False
    yield "png-text.png", png(64, 64, chunks=[text] * 20), True
    yield "png-profile.png", png(64, 64, chunks=[profile]), True
    yield "png-after.png", png(64, 64, after=4000), False
    yield "png-after-interlaced.png", png(63, 63, 16, 6, True, after=4000), False
    yield "png-little-after.png", png(64, 64, after=10), True
