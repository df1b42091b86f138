#!/usr/bin/env python3
"""drop_sums.py PATH...: removes the checksums from .safetensors files, or from all files of step folders, as if an older
version had written them: for tests that change such files."""
import json
import os
import struct
import sys


def drop(path):
    with open(path, "rb") as f:
        data = f.read()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    meta = {k: v for k, v in header.pop("__metadata__", {}).items() if not k.endswith("_crc32c")}
    text = json.dumps(({"__metadata__": meta} if meta else {}) | header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data[8 + length:])


for given in sys.argv[1:]:
    if not os.path.isdir(given):
        drop(given)
        continue
    for name in os.listdir(given):
        if name.endswith(".safetensors"):
            drop(os.path.join(given, name))
    if os.path.exists(os.path.join(given, "checksums.txt")):
        os.remove(os.path.join(given, "checksums.txt"))
