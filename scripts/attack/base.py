"""base.py: the files that cases copy and damage: configurations, runs, images, packed datasets, outputs."""
import json
import os
import struct
import subprocess
import zlib

TINY = """[model]
arch = custom
block = basic
stem = cifar
depths = 1,1
widths = 4,8
[data]
kind = synthetic
image_size = 8
train_images = 16
val_images = 8
workers = 1
[train]
batch = 4
epochs = 4
save_every = 2
log_every = 2
device = cpu
threads = 1
"""


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width=8, height=8, depth=8, color=2, rows=None, extra=b"", interlace=0):
    """A PNG file; rows: its uncompressed bytes."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(color, 3)
    if rows is None:
        line = bytes((7 * i) % 256 for i in range((width * channels * depth + 7) // 8))
        rows = (b"\0" + line) * height
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0,
                                                              interlace)) +
            extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def safetensors(header, data=b"", length=None):
    """A safetensors file; header: an object, or bytes that may be no JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def split_safetensors(blob):
    length = struct.unpack("<Q", blob[:8])[0]
    return json.loads(blob[8:8 + length]), blob[8 + length:]


def images(folder, classes=("a", "b"), count=4, data=None):
    for name in classes:
        inside = os.path.join(os.fsencode(folder), os.fsencode(name))
        os.makedirs(inside, exist_ok=True)
        for i in range(count):
            with open(os.path.join(inside, b"%d.png" % i), "wb") as f:
                f.write(data or png(8 + i, 8))


def make(folder, program):
    folder.mkdir(parents=True)
    (folder / "tiny.ini").write_text(TINY)
    folder_ini = TINY.replace("kind = synthetic", "kind = folder\nroot = images\nval_fraction = 0.5\ncrop = pad")
    (folder / "folder.ini").write_text("\n".join(l for l in folder_ini.split("\n") if "_images" not in l))
    images(folder / "images")
    env = dict(os.environ, OMP_NUM_THREADS="1", HOME=str(folder), GOMP_SPINCOUNT="1000")

    def run(*args, to=None):
        said = subprocess.run([program, *args], cwd=folder, env=env, capture_output=True, timeout=120)
        if said.returncode:
            raise SystemExit("attack-test: cannot prepare: %s: %s" % (" ".join(args), said.stderr.decode()))
        if to:
            (folder / to).write_bytes(said.stdout)
    run("train", "tiny.ini", "-o", "run", "--steps", "4", "-q")
    run("prune", "run", "--sparsity", "0.5", "-o", "pruned", "-q")
    run("quantize", "run", "-o", "quantized", "-q")
    run("export", "run", "-o", "weights.safetensors")
    run("data", "pack", "folder.ini", "packed", "-q")
    run("train", "folder.ini", "-o", "trained", "--steps", "2", "-q")
    run("sweep", "tiny.ini", "-o", "sweep", "train.seed=1,2", "--steps", "2", "-q")
    run("finetune", "images", "-o", "tuned", "--epochs", "1", "--weights", "none", "-q")
    run("compress", "run", "--speedup", "1.1", "--epochs", "1", "train.measure=no", "train.threads=1", "--multiple", "2",
        "-o", "compressed", "-q")
    run("profile", "tiny.ini", "--steps", "1", "--json", to="profile.jsonl")
    run("plan", "tiny.ini", "--csv", to="plan.csv")
