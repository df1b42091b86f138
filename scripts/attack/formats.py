"""formats.py: damaged safetensors, packed datasets, logs, tables and other files that commands read."""
import json
import struct

from .base import png, safetensors, split_safetensors
from .support import add, case

S = "formats"


def reads_weights(c, blob, **options):
    c.take("run")
    c.write("w.safetensors", blob)
    c.run("eval", "tiny.ini", "--weights", "w.safetensors", **options)
    c.run("export", "w.safetensors", "-o", "out.safetensors", **options)
    c.run("train", "tiny.ini", "-o", "R", "--steps", "1", "--weights", "w.safetensors", **options)
    c.run("prune", "tiny.ini", "--weights", "w.safetensors", "--sparsity", "0.5", "-o", "P", **options)
    c.run("quantize", "tiny.ini", "--weights", "w.safetensors", "-o", "Q", **options)
    for checkpoint in c.checkpoints():
        (checkpoint / "model.safetensors").write_bytes(blob)
    c.run("eval", "run", **options)
    c.run("export", "run", "--onnx", "out.onnx", **options)
    c.run("train", "tiny.ini", "-o", "run", "--resume", "auto", "--steps", "5", **options)


F = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
TENSORS = {
    "an empty file": b"",
    "7 bytes": b"1234567",
    "length 0": safetensors(b""),
    "length 2^63": safetensors(b"{}", b"", 1 << 63),
    "length 2^64 - 1": safetensors(b"{}", b"", (1 << 64) - 1),
    "length 2^64 - 8": safetensors(b"{}", b"", (1 << 64) - 8),
    "length beyond the end": safetensors(b"{}", b"", 1000),
    "an empty object": safetensors({}),
    "an array": safetensors(b"[]"),
    "null": safetensors(b"null"),
    "100,000 open brackets": safetensors(b"[" * 100000),
    "100,000 open braces": safetensors(b'{"a":' * 100000),
    "metadata nested 100,000 times": safetensors(b'{"__metadata__":' + b"[" * 100000 + b"]" * 100000 + b"}"),
    "metadata that is no object": safetensors({"__metadata__": 5}),
    "metadata with numbers": safetensors({"__metadata__": {"a": 5}}),
    "metadata of 1 MiB": safetensors({"__metadata__": {"a": "x" * (1 << 20)}, "t": F}, bytes(8)),
    "a tensor without members": safetensors({"t": {}}),
    "a tensor that is a number": safetensors({"t": 5}),
    "an unknown type": safetensors({"t": dict(F, dtype="F33")}, bytes(8)),
    "a type with escape sequences": safetensors({"t": dict(F, dtype="\x1b[31m")}, bytes(8)),
    "a type that is a number": safetensors({"t": dict(F, dtype=32)}, bytes(8)),
    "a negative dimension": safetensors({"t": dict(F, shape=[-2])}, bytes(8)),
    "a dimension of 2^63": safetensors({"t": dict(F, shape=[1 << 63])}, bytes(8)),
    "dimensions whose product wraps to 2": safetensors({"t": dict(F, shape=[1 << 32, 1 << 32, 2])}, bytes(8)),
    "dimensions 0 and 2^62": safetensors({"t": dict(F, shape=[0, 1 << 62], data_offsets=[0, 0])}),
    "a dimension of 1.5": safetensors({"t": dict(F, shape=[1.5])}, bytes(8)),
    "1,000 dimensions": safetensors({"t": dict(F, shape=[1] * 1000, data_offsets=[0, 4])}, bytes(4)),
    "offsets in the wrong order": safetensors({"t": dict(F, data_offsets=[8, 0])}, bytes(8)),
    "offsets of 2^64 - 8": safetensors({"t": dict(F, data_offsets=[(1 << 64) - 8, 0])}, bytes(8)),
    "offsets of 10^30": safetensors({"t": dict(F, data_offsets=[0, 10**30])}, bytes(8)),
    "one offset": safetensors({"t": dict(F, data_offsets=[0])}, bytes(8)),
    "three offsets": safetensors({"t": dict(F, data_offsets=[0, 8, 8])}, bytes(8)),
    "tensors that overlap": safetensors({"t": F, "u": F}, bytes(8)),
    "a gap between tensors": safetensors({"t": F, "u": dict(F, data_offsets=[16, 24])}, bytes(24)),
    "data after the last tensor": safetensors({"t": F}, bytes(80)),
    "data that is missing": safetensors({"t": F}, bytes(4)),
    "a name twice": safetensors(b'{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
                                b'"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', bytes(8)),
    "a member twice": safetensors(b'{"t":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8)),
    "an empty name": safetensors({"": F}, bytes(8)),
    "a name of 1 MiB": safetensors({"n" * (1 << 20): F}, bytes(8)),
    "a name with escape sequences": safetensors(json.dumps({"\u001b]0;t\u0007\n\u009b": F}).encode(), bytes(8)),
    "a name with \\u0000": safetensors(b'{"a\\u0000b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8)),
    "a name that is no UTF-8": safetensors(b'{"a\xff":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8)),
    "an unpaired surrogate": safetensors(b'{"a\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8)),
    "100,000 tensors": safetensors({"t%d" % i: dict(F, shape=[0], data_offsets=[0, 0]) for i in range(100000)}),
    "a sparse tensor without values": safetensors({"__metadata__": {"cresnet_sparse": "1"}, "conv1.weight.shape": {
        "dtype": "I64", "shape": [4], "data_offsets": [0, 32]}}, struct.pack("<4q", 4, 3, 3, 3)),
    "a sparse shape of 2^62": safetensors({"__metadata__": {"cresnet_sparse": "1"}, "conv1.weight.shape": {
        "dtype": "I64", "shape": [1], "data_offsets": [0, 8]}, "conv1.weight.values": {"dtype": "F32", "shape": [0],
                "data_offsets": [8, 8]},
        "conv1.weight.gaps": {"dtype": "U8", "shape": [0], "data_offsets": [8, 8]}}, struct.pack("<q", 1 << 62)),
    "a negative sparse shape": safetensors({"__metadata__": {"cresnet_sparse": "1"}, "conv1.weight.shape": {
        "dtype": "I64", "shape": [4], "data_offsets": [0, 32]}, "conv1.weight.values": {"dtype": "F32", "shape": [0],
                "data_offsets": [32, 32]},
        "conv1.weight.gaps": {"dtype": "U8", "shape": [0], "data_offsets": [32, 32]}},
                                           struct.pack("<4q", -4, -3, 3, 3)),
    "sparse format 99": safetensors({"__metadata__": {"cresnet_sparse": "99"}, "t": F}, bytes(8)),
    "a .pth file": b"PK\x03\x04" + b"\0" * 22 + b"archive/data.pkl" + b"\x80\x02}q\0." * 20,
    "a pickle": b"\x80\x04\x95\x1e\0\0\0\0\0\0\0"
                b"\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94.",
    "a PNG file": png(),
}
for title, blob in TENSORS.items():
    add(S, "weights: " + title, lambda c, blob=blob: reads_weights(c, blob))

CHANGES = {
    "NaN and infinity": lambda h, d: (h, struct.pack("<ff", float("nan"), float("inf")) * (len(d) // 8)),
    "denormal numbers": lambda h, d: (h, struct.pack("<I", 1) * (len(d) // 4)),
    "F16 instead of F32": lambda h, d: ({k: dict(v, dtype="F16") if "dtype" in v else v for k, v in h.items()}, d),
    "I64 instead of F32": lambda h, d: ({k: dict(v, dtype="I64") if "dtype" in v else v for k, v in h.items()}, d),
    "all tensors at offset 0": lambda h, d: ({k: dict(v, data_offsets=[0, v["data_offsets"][1] - v["data_offsets"][0]])
                                              if "dtype" in v else v for k, v in h.items()}, d),
    "fc.weight is missing": lambda h, d: ({k: v for k, v in h.items() if k != "fc.weight"}, d),
    "a tensor with another shape": lambda h, d: (dict(h, **{"fc.weight": dict(h["fc.weight"], shape=[8, 10])}), d),
    "variances below zero": lambda h, d: (h, struct.pack("<f", -1.0) * (len(d) // 4)),
    "names with a prefix": lambda h, d: ({k if k[0] == "_" else "module." + k: v for k, v in h.items()}, d),
}
for title, change in CHANGES.items():
    def changed(c, change=change):
        for name in ("run", "pruned", "quantized"):
            c.take(name)
            last = c.checkpoints(name)[-1]
            header, data = split_safetensors((last / "model.safetensors").read_bytes())
            try:
                reads_weights(c, safetensors(*change(header, data)))
            except KeyError:
                pass
            c.rm("run", "pruned", "quantized", "R", "P", "Q", "out.safetensors", "out.onnx")
    add(S, "weights of a run: " + title, changed)


def damage(c, path, count):
    """Damaged copies of a file: cut at several offsets, and with flipped bits."""
    blob = path.read_bytes()
    for at in sorted({0, 1, 7, 8, 9, len(blob) // 3, len(blob) // 2, len(blob) - 1}):
        yield blob[:at]
    for i in range(count):
        bad = bytearray(blob)
        for _ in range(1 + i % 5):
            limit = len(bad) if i % 3 else min(len(bad), 400)
            bad[c.random.randrange(limit)] ^= 1 << c.random.randrange(8)
        yield bytes(bad)


for name in ("model.safetensors", "state.safetensors", "config.ini", "classes.txt"):
    for run in ("run", "pruned", "quantized"):
        def damaged(c, name=name, run=run):
            c.take(run, "images")
            files = [p / name for p in c.checkpoints(run) if (p / name).exists()]
            if not files:
                files = [c.checkpoints(run)[-1] / name]
                files[0].write_bytes(b"x")
            for bad in damage(c, files[-1], 8):
                for f in files:
                    f.write_bytes(bad)
                c.run("eval", run)
                c.run("predict", run, "images/a/0.png")
                c.run("train", "tiny.ini", "-o", "R", "--resume", run, "--steps", "5")
                c.rm("R")
        add(S, "%s of %s, cut and with flipped bits" % (name, run), damaged)


def reads_pack(c):
    c.run("data", "verify", "packed")
    c.run("data", "tiny.ini", "data.kind=packed", "data.root=packed", "data.train_images=0", "data.val_images=0")
    c.run("train", "tiny.ini", "data.kind=packed", "data.root=packed", "data.train_images=0", "data.val_images=0",
          "-o", "R", "--steps", "2")
    c.rm("R")


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


@case(S, "packed dataset, cut and with flipped bits")
def _(c):
    c.take("packed")
    for bad in damage(c, c.path("packed/train.crpk"), 10):
        c.write("packed/train.crpk", bad)
        reads_pack(c)


FIELDS = {"version": (8, "<I"), "form": (12, "<I"), "size": (16, "<Q"), "images": (24, "<Q"), "classes": (32, "<I"),
          "name bytes": (40, "<Q"),
          "index offset": (48, "<Q"), "flags": (56, "<I"), "reserved": (60, "<Q")}
for title, (offset, form) in FIELDS.items():
    def header(c, offset=offset, form=form):
        c.take("packed")
        blob = c.path("packed/train.crpk").read_bytes()
        most = (1 << 8 * struct.calcsize(form)) - 1
        for value in (0, 1, 2, most, most >> 1, (most >> 1) + 1, most - 31, 1 << 27, len(blob), len(blob) - 1):
            bad = bytearray(blob)
            struct.pack_into(form, bad, offset, value)
            struct.pack_into("<I", bad, 124, crc32c(bytes(bad[:124])))
            c.write("packed/train.crpk", bytes(bad))
            c.run("data", "verify", "packed")
            c.run("data", "tiny.ini", "data.kind=packed", "data.root=packed", "data.train_images=0",
                  "data.val_images=0")
    add(S, "packed dataset: %s of the header, with a correct checksum" % title, header)


@case(S, "packed dataset: index and class names, with correct checksums")
def _(c):
    c.take("packed")
    blob = c.path("packed/train.crpk").read_bytes()
    names, index = struct.unpack_from("<QQ", blob, 40)

    def store(bad):
        struct.pack_into("<I", bad, 36, crc32c(bytes(bad[128:128 + names]) + bytes(bad[index:])))
        struct.pack_into("<I", bad, 124, crc32c(bytes(bad[:124])))
        c.write("packed/train.crpk", bytes(bad))
        reads_pack(c)
    store(bytearray(blob))
    for at, form in ((0, "<Q"), (8, "<I"), (12, "<I"), (16, "<I"), (20, "<I"), (28, "<I")):
        for value in (0, 1, 0x7fffffff, 0xffffffff):
            bad = bytearray(blob)
            struct.pack_into(form, bad, index + at, value if form == "<I" else (value << 32) | value)
            store(bad)
    for text in (b"\x1b\n", b"\0\0", b"\xff\xff", b"b\0"):
        bad = bytearray(blob)
        bad[128:128 + len(text)] = text
        store(bad)


TEXTS = [b"", b"\0" * 100, b"{}", b"[]", b"null\n" * 10, b'{"event":5}\n', b'{"event":"train"}\n',
         b'{"event":"train","step":"x","loss":[]}\n',
         b'{"event":"train","step":-1,"loss":1e999}\n', b'{"event":"train","step":1e300,"loss":-1e308}\n' * 3,
         b'{"event":"eval","step":18446744073709551616,"top1":5}\n', b"\x1b[31m\n", b"\xff\xfe" * 10,
         b'{"event":"\\u001b[31m<script>","step":1}\n', b'{"a":' * 70000, b"[" * 70000, b"x" * (1 << 20),
         b'{"event":"train","step":1,"loss":1,"loss":2}\n' * 3, b'{"event":"train","step":1,"loss":nan}\n',
         b'{"event":"start","version":"<script>alert(1)</script>","step":0,"total_steps":-5}\n' +
         b'{"event":"train","step":1,"epoch":1,"loss":2,"top1":0.5,"lr":0.1,"images_per_s":5,"data_wait":0}\n' * 2]


@case(S, "log.jsonl")
def _(c):
    c.take("run")
    for text in TEXTS:
        c.write("run/log.jsonl", text)
        c.run("report", "run", "-o", "r.html")
        c.run("report", "run", "--no-eval", "-o", "r.html")
        if c.path("r.html").exists() and b"<script>alert" in c.path("r.html").read_bytes():
            c.problem("report", "a script of the log is in the page")
    c.run("train", "tiny.ini", "-o", "run", "--resume", "auto", "--steps", "6", deadline=40)


@case(S, "log.jsonl with 200,000 lines")
def _(c):
    c.take("run")
    c.write("run/log.jsonl", b"".join(b'{"event":"train","step":%d,"epoch":1,"loss":2.5,"lr":0.1}\n' % (i % 9000)
                                      for i in range(200000)))
    c.run("report", "run", "--no-eval", "-o", "r.html", deadline=60)


@case(S, "best.json")
def _(c):
    c.take("run")
    for text in TEXTS + [b'{"step":-1,"top1":0.5}', b'{"step":1e300,"top1":0.5}', b'{"step":4,"top1":"\x1b"}',
                         b'{"step":4,"top1":0.5}' * 2]:
        c.write("run/best.json", text)
        c.run("train", "tiny.ini", "-o", "run", "--resume", "auto", "--steps", "4")
        c.run("eval", "run")


@case(S, "prune --budget")
def _(c):
    c.take("run")
    for text in [b"", b"layer\n", b"layer,x\nfc,0.5\n", b"layer,a,a\nconv1,0.5,0.5\n", b"layer,a\nconv1,nan\n",
                 b"layer,a\nconv1,-1\n",
                 b"layer,a\nconv1,1e999\n", b"layer,a\nconv1,100\n", b"layer,a\n-1,0.5\n",
                 b"layer,a\n99999999999999999999,0.5\n",
                 b"layer,a\n\x1b[31m,0.5\n", b"layer,a\n\xff,0.5\n", b"layer,\x1b[31m\nconv1,0.5\n",
                 b"layer,a\nconv1,0.5\nconv1,0.6\n",
                 b"layer" + b",a" * 100000 + b"\n", b"layer,a\nOverall,0.5\n", b"x" * (1 << 20), b"\0" * 1000,
                 b"layer,a\n\"conv1,0.5\n"]:
        c.write("b.csv", text)
        c.run("prune", "run", "--budget", "b.csv", "-o", "P")
        c.rm("P")


@case(S, "plan --kernel-times")
def _(c):
    for text in (b"", b"\0" * 100, b"\x1b[31m\n", b"x" * (1 << 20), b"\xff\xff\n" * 1000, b"kernel-times 1\n" * 5):
        c.write("k.txt", text)
        c.run("plan", "tiny.ini", "--target", "h200", "--kernel-times", "k.txt")


@case(S, "folders, devices and links in place of every input file")
def _(c):
    import os
    c.take("run")
    os.mkfifo(c.path("pipe"))
    os.symlink("loop", c.path("loop"))
    c.fails("eval", "tiny.ini", "--weights", "pipe")
    for name in ("loop", ".", "/dev/zero", "/dev/null", "/proc/self/mem", "/dev/full", "missing"):
        for args in (["eval", "tiny.ini", "--weights", name],
                     ["prune", "run", "--budget", name, "-o", "P"],
                     ["plan", "tiny.ini", "--target", "h100", "--kernel-times", name], ["data", "verify", name],
                     ["export", name, "-o", "e"]):
            c.run(*args, deadline=15, errors=2)
            c.rm("P")
