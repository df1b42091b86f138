#!/usr/bin/env python3
"""Reads and writes safetensors files as numpy arrays, for tests.

  st.py FILE      writes the golden file of test_safetensors.c, tests/golden/safetensors/demo.safetensors
"""
import sys

import numpy as np

import weights_file

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
    typed = {name: type_of(a) for name, a in tensors.items()}
    order = sorted(typed, key=lambda n: (-ORDER.index(typed[n][0]), n.encode()))
    stored = {name: (kind, a.shape, np.asarray(a).astype(NUMPY[kind], copy=False).tobytes()) for name in order for kind, a in [typed[name]]}
    weights_file.write(path, stored, dict(sorted((meta or {}).items())))


def load(path):
    """({name: array or BF16}, metadata)"""
    tensors, meta = weights_file.read(path)
    arrays = {name: np.frombuffer(data, dtype=NUMPY[kind]).reshape(shape) for name, (kind, shape, data) in tensors.items()}
    return {name: BF16(a) if tensors[name][0] == "BF16" else a for name, a in arrays.items()}, meta


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
