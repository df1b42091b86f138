"""images.py: damaged and extreme PNG and JPEG files."""
import struct
import zlib

from .base import chunk, images, png
from .support import add, case

S = "images"


def classify(c, data, name="x.png", **options):
    c.take("run")
    c.write(name, data)
    c.run("predict", "run", name, **options)
    c.run("predict", "run", name, "--json", **options)


def as_dataset(c, data, name="x.png"):
    c.take("folder.ini", "images")
    for i in range(4):
        c.write("images/a/%d%s" % (i, name), data)
    c.run("data", "stat", "images", deadline=40)
    c.run("data", "verify", "images", deadline=40)
    c.run("data", "pack", "folder.ini", "P", deadline=40)
    c.run("train", "folder.ini", "-o", "R", "--steps", "2", deadline=40)
    c.run("train", "folder.ini", "-o", "R2", "--steps", "2", "data.corrupt=fatal", deadline=40)


def header(width, height, depth=8, color=2, method=0, filters=0, interlace=0):
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, method, filters,
                                                             interlace))


IEND = chunk(b"IEND", b"")
PNGS = {
    "zero bytes": b"",
    "one byte": b"\x89",
    "only the signature": png()[:8],
    "no image data": header(8, 8) + IEND,
    "width 0": header(0, 8) + chunk(b"IDAT", zlib.compress(b"")) + IEND,
    "2^31 - 1 squared": header(2**31 - 1, 2**31 - 1) + chunk(b"IDAT", zlib.compress(b"0")) + IEND,
    "2^32 - 1 wide": header(2**32 - 1, 1) + chunk(b"IDAT", zlib.compress(b"0")) + IEND,
    "65,535 squared without data": header(65535, 65535) + chunk(b"IDAT", zlib.compress(b"0")) + IEND,
    "1 x 60,000": png(1, 60000),
    "60,000 x 1": png(60000, 1),
    "1 x 1": png(1, 1),
    "16 bits": png(8, 8, 16),
    "16 bits, grey and alpha": png(8, 8, 16, 4),
    "1 bit": png(9, 9, 1, 0),
    "a palette without PLTE": png(8, 8, 8, 3),
    "a palette of one entry": png(8, 8, 8, 3, extra=chunk(b"PLTE", b"abc")),
    "a palette of a wrong length": png(8, 8, 8, 3, extra=chunk(b"PLTE", b"abcd")),
    "a palette of 300 entries": png(8, 8, 8, 3, extra=chunk(b"PLTE", b"abc" * 300)),
    "interlaced, cut": png(64, 64, interlace=1)[:120],
    "an unknown colour type": header(8, 8, 8, 5) + IEND,
    "a bit depth of 7": header(8, 8, 7) + IEND,
    "too few rows": png(8, 8, rows=(b"\0" + bytes(24)) * 2),
    "too many rows": png(8, 8, rows=(b"\0" + bytes(24)) * 2000),
    "unknown filters": png(8, 8, rows=(b"\x09" + bytes(24)) * 8),
    "a wrong checksum": png()[:-20] + b"\0" * 20,
    "a chunk of 2^31 bytes": header(8, 8) + struct.pack(">I", 2**31 - 1) + b"IDAT" + b"x" * 100,
    "100,000 empty chunks": png(extra=chunk(b"IDAT", b"") * 0 + chunk(b"teSt", b"") * 100000),
    "a compressed text of 64 MiB": png(extra=chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(64 << 20)))),
    "a colour profile of 64 MiB": png(extra=chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(64 << 20)))),
    "rows of 27 MiB that are zero": png(3000, 3000, rows=bytes(9001) * 3000),
    "EXIF with a wrong length": png(extra=chunk(b"eXIf", b"II*\0\xff\xff\xff\xff")),
    "EXIF that points to itself": png(
        extra=chunk(b"eXIf", b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x09\0\0\0\x08\0\0\0")),
    "EXIF with 65,535 entries": png(extra=chunk(b"eXIf", b"MM\0*\0\0\0\x08\xff\xff" +
                                                b"\x01\x12\0\x03\0\0\0\1\0\6\0\0" * 1000)),
    "text chunks with escape sequences": png(extra=chunk(b"tEXt", b"\x1b[31m\0\x1b[2J")),
    "a PNG and 1 MiB after it": png() + b"x" * (1 << 20),
    "two PNG files in one": png() + png(16, 16),
    "IDAT before IHDR": b"\x89PNG\r\n\x1a\n" + chunk(b"IDAT", zlib.compress(b"0")) + header(8, 8)[8:] + IEND,
    "gamma 0": png(extra=chunk(b"gAMA", bytes(4))),
    "transparency of a wrong length": png(extra=chunk(b"tRNS", b"x" * 99)),
    "a background of a wrong length": png(extra=chunk(b"bKGD", b"x")),
    "text": b"this is no image\x1b[31m",
    "HTML": b"<html><script>alert(1)</script>",
    "GIF": b"GIF89a\xff\xff\xff\xff\x80\0\0" + b"x" * 100,
    "BMP": b"BM" + b"\xff" * 200,
    "WebP": b"RIFF\xff\xff\xff\xffWEBPVP8 " + b"x" * 100,
    "TIFF": b"II*\0\x08\0\0\0" + b"\xff" * 100,
}
for title, data in PNGS.items():
    add(S, "PNG: " + title, lambda c, data=data: (classify(c, data), as_dataset(c, data, ".png")))


def segment(kind, data):
    return b"\xff" + bytes([kind]) + struct.pack(">H", len(data) + 2) + data


def exif(body):
    return segment(0xe1, b"Exif\0\0" + body)


def jpeg_seed(c, name="rgb.jpg"):
    return (c.source / "tests" / "fuzz" / "corpus" / "fuzz_jpeg" / name).read_bytes()


def resized(blob, width, height):
    """The JPEG file with another size in its frame header."""
    for marker in (b"\xff\xc0", b"\xff\xc1", b"\xff\xc2"):
        at = blob.find(marker)
        if at >= 0:
            return blob[:at + 5] + struct.pack(">HH", height, width) + blob[at + 9:]
    return blob


def inserted(blob, segments):
    return blob[:2] + segments + blob[2:]


JPEGS = {
    "only the start": lambda b: b[:2],
    "start and end": lambda b: b"\xff\xd8\xff\xd9",
    "cut in the header": lambda b: b[:len(b) // 4],
    "cut in the middle": lambda b: b[:len(b) // 2],
    "the last byte is missing": lambda b: b[:-1],
    "size 0": lambda b: resized(b, 0, 0),
    "65,535 squared": lambda b: resized(b, 65535, 65535),
    "65,535 x 1": lambda b: resized(b, 65535, 1),
    "1 x 65,535": lambda b: resized(b, 1, 65535),
    "10,000 scans": lambda b: b[:-2] + b[b.find(b"\xff\xda"):-2] * 2000 + b"\xff\xd9",
    "a segment length of 0": lambda b: inserted(b, b"\xff\xe2\0\0"),
    "a segment length of 1": lambda b: inserted(b, b"\xff\xe2\0\1"),
    "a segment beyond the end": lambda b: inserted(b, b"\xff\xe2\xff\xff"),
    "1,000 application segments": lambda b: inserted(b, segment(0xe1, b"x" * 60000) * 100),
    "comments with escape sequences": lambda b: inserted(b, segment(0xfe, b"\x1b[31m\x1b]0;t\x07" * 100)),
    "EXIF without a body": lambda b: inserted(b, exif(b"")),
    "EXIF with an unknown byte order": lambda b: inserted(b, exif(b"XX*\0\x08\0\0\0")),
    "EXIF offset 2^32 - 1": lambda b: inserted(b, exif(b"II*\0\xff\xff\xff\xff")),
    "EXIF offset that points to itself": lambda b: inserted(b, exif(b"II*\0\x04\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0")),
    "EXIF: the next directory is the first": lambda b: inserted(
        b, exif(b"MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\x08")),
    "EXIF: orientation 0": lambda b: inserted(b, exif(b"MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\0\0\0\0\0\0\0")),
    "EXIF: orientation 255": lambda b: inserted(b, exif(b"MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\xff\0\0\0\0\0\0")),
    "EXIF: orientation of a count of 2^32 - 1": lambda b: inserted(
        b, exif(b"MM\0*\0\0\0\x08\0\1\1\x12\0\3\xff\xff\xff\xff\0\6\0\0\0\0\0\0")),
    "EXIF: 65,535 entries": lambda b: inserted(
        b, exif(b"MM\0*\0\0\0\x08\xff\xff" + b"\1\x13\0\3\0\0\0\1\0\6\0\0" * 3000)),
    "EXIF 1,000 times": lambda b: inserted(b, exif(b"MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0") * 1000),
    "another file after the end": lambda b: b + png() + b,
    "PNG with the name of a JPEG": lambda b: png(),
}
for title, change in JPEGS.items():
    def damaged(c, change=change):
        data = change(jpeg_seed(c))
        classify(c, data, "x.jpg")
        as_dataset(c, data, ".jpg")
    add(S, "JPEG: " + title, damaged)


@case(S, "JPEG: every kind of the corpus, with 20 flipped bits each")
def _(c):
    c.take("run")
    names = sorted(p.name for p in (c.source / "tests" / "fuzz" / "corpus" / "fuzz_jpeg").iterdir())
    for name in names:
        data = bytearray(jpeg_seed(c, name))
        c.write("j/a-%s.jpg" % name[:60], bytes(data))
        for i in range(8):
            bad = bytearray(data)
            for _ in range(20):
                bad[c.random.randrange(len(bad))] ^= 1 << c.random.randrange(8)
            c.write("j/%d-%s.jpg" % (i, name[:60]), bytes(bad))
    c.run("predict", "run", "j", deadline=120)


@case(S, "PNG and JPEG: cut at every 7th byte, as one folder")
def _(c):
    c.take("run")
    for name, blob in (("p.png", png(32, 32)), ("j.jpg", jpeg_seed(c))):
        for at in range(0, len(blob), 7):
            c.write("cut/%05d-%s" % (at, name), blob[:at])
    c.run("predict", "run", "cut", deadline=60)
    c.run("predict", "run", "cut", "--json", deadline=60)


@case(S, "PNG: 400 files with flipped bits, with correct checksums too")
def _(c):
    c.take("run")
    blob = png(16, 16, 8, 6)
    for i in range(400):
        bad = bytearray(blob)
        for _ in range(1 + i % 9):
            bad[8 + c.random.randrange(len(bad) - 8)] ^= 1 << c.random.randrange(8)
        if i % 2:  # header bytes with a correct checksum
            fields = bytearray(blob[16:29])
            fields[c.random.randrange(13)] ^= 1 << c.random.randrange(8)
            bad = bytearray(blob[:8] + chunk(b"IHDR", bytes(fields)) + blob[33:])
        c.write("flips/%03d.png" % i, bytes(bad))
    c.run("predict", "run", "flips", deadline=60)


@case(S, "every extension and capital letters")
def _(c):
    c.take("run")
    for name in ("x.PNG", "x.JpEg", "x", "x.", ".png", "x.png.txt", "x.gif", "png"):
        c.write(name, png())
        c.run("predict", "run", name)


@case(S, "pipes, devices, folders and links as image")
def _(c):
    import os
    c.take("run")
    images(c.path("images"))
    os.mkfifo(c.path("p.png"))
    os.symlink("l.png", c.path("l.png"))
    c.path("d.png").mkdir()
    for name in ("p.png", "l.png", "d.png", "/dev/zero", "/dev/null", "/dev/stdin", "/proc/self/mem", "/proc/self/exe",
                 "-"):
        c.fails("predict", "run", name, deadline=10)


@case(S, "1,000 times the same image, and 1,000 missing ones")
def _(c):
    c.take("run")
    c.write("x.png", png())
    c.works("predict", "run", *["x.png"] * 1000)
    c.run("predict", "run", *["missing%d.png" % i for i in range(1000)], errors=1001)
