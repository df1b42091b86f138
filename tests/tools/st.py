#!/usr/bin/env python3
"""Reads and writes safetensors files with numpy alone, for tests: written from the description of the format, independently of
src/formats/safetensors*.c, so that each implementation tests the other.

  st.py FILE      writes the golden file of test_safetensors.c, tests/golden/safetensors/demo.safetensors
"""
import json
import struct
import sys

import numpy as np

# The reference implementation sorts in the reverse of this order, then by name.
ORDER = ["BOOL", "U8", "I8", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "F64", "I64", "U64"]
NUMPY = {"BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "BF16": "<u2", "I32": "<i4",
         "U32": "<u4", "F32": "<f4", "F64": "<f8", "I64": "<i8", "U64": "<u8"}


class BF16:
    """bfloat16 bits: numpy has no such type."""

    def __init__(self, bits):
        self.bits = np.asarray(bits, dtype="<u2")

    @staticmethod
    def of(values):
        u = np.asarray(values, dtype="<f4").view("<u4").astype(np.uint64)
        return BF16(((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype("<u2"))

    def floats(self):
        return (self.bits.astype("<u4") << 16).view("<f4")


def type_of(a):
    if isinstance(a, BF16):
        return "BF16", a.bits
    for name, code in NUMPY.items():
        if name != "BF16" and a.dtype == np.dtype(code):
            return name, a
    raise ValueError("no safetensors type for %s" % a.dtype)


def save(path, tensors, meta=None):
    """tensors: {name: numpy array or BF16}; meta: {str: str}"""
    table, at, blobs = {}, 0, []
    if meta:
        table["__metadata__"] = dict(sorted(meta.items()))
    typed = {name: type_of(a) for name, a in tensors.items()}
    for name in sorted(typed, key=lambda n: (-ORDER.index(typed[n][0]), n.encode())):
        kind, a = typed[name]
        blob = np.asarray(a).astype(NUMPY[kind], copy=False).tobytes()
        table[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    head = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + b"".join(blobs))


def load(path):
    """({name: array or BF16}, metadata)"""
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    table = json.loads(raw[8:8 + n])
    meta = table.pop("__metadata__", {})
    data, out, end = raw[8 + n:], {}, 0
    for name, t in sorted(table.items(), key=lambda kv: kv[1]["data_offsets"]):
        a, b = t["data_offsets"]
        assert a == end and b <= len(data), "%s: holes or overlaps" % name
        end = b
        v = np.frombuffer(data[a:b], dtype=NUMPY[t["dtype"]]).reshape(t["shape"])
        out[name] = BF16(v) if t["dtype"] == "BF16" else v
    assert end == len(data), "bytes left over"
    return out, meta


def demo():
    tensors = {
        "a.weight": (np.arange(6, dtype="<f4") * 0.5 - 1).reshape(2, 3),
        "b.f64": np.array([1 / 3, -1e300], dtype="<f8"),
        "c.f16": np.array([1.5, -0.25, 65504, 6e-8], dtype="<f2"),
        "d.bf16": BF16.of([1.0, -2.5, 3.140625, 1e-38]),
        "e.u8": np.array([0, 7, 255], dtype="u1"),
        "f.i32": np.array([-5, 2**31 - 1], dtype="<i4"),
        "g.count": np.array(123456789012, dtype="<i8"),
        "h.empty": np.zeros((0, 5), dtype="<f4"),
        'i "\u00fc\\\u20ac\U0001f600': np.array([42], dtype="<f4"),
    }
    return tensors, {"format": "pt", "answer": "forty \"two\"", "b": ""}


if __name__ == "__main__":
    save(sys.argv[1], *demo())
