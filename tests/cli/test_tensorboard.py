#!/usr/bin/env python3
"""test_tensorboard.py: event files hold what log.jsonl holds. Records and protocol buffers are read by the few lines below, which
share nothing with ours; where the package tensorboard is (tools/peers.py), its own reader must find the same scalars.

A run is ended and resumed from an older checkpoint: what was logged beyond it must be gone from TensorBoard's curves.
"""
import glob
import json
import math
import os
import struct
import subprocess
import sys

from support import TINY_MODEL, check, cresnet, ends, run, skip
import peers
from onnx_text import varint

HERE = os.path.abspath(__file__)
CONFIG = TINY_MODEL + """[data]
kind = synthetic
image_size = 8
train_images = 64
val_images = 32
workers = 0
[train]
batch = 8
epochs = 3
device = cpu
threads = 1
log_every = 1
keep = 10
"""
GROUPS = {"train": "train", "eval": "val", "prune": "prune"}


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    data, at = open(path, "rb").read(), 0
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        assert crc == masked(data[at : at + 8]), "checksum of a length"
        body = data[at + 12 : at + 12 + length]
        assert len(body) == length and struct.unpack_from("<I", data, at + 12 + length)[0] == masked(body), "checksum of a record"
        yield body
        at += 16 + length


def fields(data):
    """(number, value) of a protocol buffer's fields; bytes for length-delimited ones."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(data, at)
            yield number, value
        elif wire == 1:
            yield number, struct.unpack_from("<d", data, at)[0]
            at += 8
        elif wire == 5:
            yield number, struct.unpack_from("<f", data, at)[0]
            at += 4
        else:
            size, at = varint(data, at)
            yield number, data[at : at + size]
            at += size


def our_reading(folder):
    """{tag: {step: value}} of all files in the order of their names; a start voids what came before from its step on."""
    found = {}
    for path in sorted(glob.glob(f"{folder}/events.out.tfevents.*")):
        for i, body in enumerate(records(path)):
            event = dict(fields(body))
            assert (event.get(3) == b"brain.Event:2") == (i == 0)
            assert 1.6e9 < event[1] < 4e9, "wall time"
            if 7 in event:
                for curve in found.values():
                    for step in [s for s in curve if s >= event[2]]:
                        del curve[step]
            for number, value in fields(event.get(5, b"")):
                scalar = dict(fields(value))
                found.setdefault(scalar[1].decode(), {})[event[2]] = scalar[2]
    return found


def tensorboard_reading(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(folder, size_guidance={"scalars": 0}, purge_orphaned_data=True)
    accumulator.Reload()
    return {tag: {e.step: e.value for e in accumulator.Scalars(tag)} for tag in accumulator.Tags()["scalars"]}


def expected(folder):
    """What log.jsonl says, with what a resumed run did anew left out."""
    found = {}
    for line in open(f"{folder}/log.jsonl"):
        entry = json.loads(line)
        group = GROUPS.get(entry.pop("event"))
        if "total_steps" in entry:  # start, resume
            for curve in found.values():
                for step in [s for s in curve if s > entry["step"]]:
                    del curve[step]
        if not group:
            continue
        step = entry.pop("step")
        for name, value in entry.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found.setdefault(f"{group}/{name}", {})[step] = struct.unpack("<f", struct.pack("<f", value))[0]
    return found


def main():
    open("tiny.ini", "w").write(CONFIG)
    ends("train", 0, [], "train", "tiny.ini", "-o", "run", "prune.sparsity=0.5", "prune.start=1", "prune.end=2", "prune.frequency=2", "ema.decay=0.9", "--epochs", "2")
    check("one file", len(glob.glob("run/events.out.tfevents.*")) == 1)
    want = expected("run")
    check("tags", {"train/loss", "train/lr", "train/images_per_s", "train/data_wait", "val/top1", "val/ema_top1", "prune/sparsity"} <= set(want), sorted(want))
    check("steps", len(want["train/loss"]) == 16 and len(want["val/top1"]) == 2, want["train/loss"])
    check("our reading of a run", our_reading("run") == want)
    # From an older checkpoint, as after a crash: steps 9 to 16 are done again, and are void in the first file.
    ends("resume", 0, [], "train", "tiny.ini", "--resume", "run/step-8", "optim.lr=0.05", "--epochs", "3")
    check("a file a start", len(glob.glob("run/events.out.tfevents.*")) == 2)
    want = expected("run")
    check("our reading of a resumed run", our_reading("run") == want)
    check("all steps once", sorted(want["train/loss"]) == list(range(1, 25)))
    check("finite", all(math.isfinite(v) for curve in want.values() for v in curve.values()))
    ran = cresnet("train", "tiny.ini", "-o", "none", "train.tensorboard=no", "--epochs", "1")
    check("tensorboard=no", ran.returncode == 0 and not glob.glob("none/events*"), ran.stderr)
    python = peers.interpreter("tensorboard")
    if python:
        read = subprocess.run([python, HERE, "read", "run"], capture_output=True, text=True)
        theirs = {tag: {int(s): v for s, v in curve.items()} for tag, curve in json.loads(read.stdout or "{}").items()}
        check("TensorBoard's reading", theirs == want, read.stderr or {t: (theirs.get(t), want[t]) for t in want if theirs.get(t) != want[t]})
    else:
        skip("TensorBoard's reading: no python3 with the package tensorboard (scripts/deps.sh: need_peers)")


if sys.argv[1:2] == ["read"]:
    print(json.dumps(tensorboard_reading(sys.argv[2])))
else:
    run(main)
