#!/usr/bin/env python3
"""Reads and writes safetensors files with Python alone, for tests that compare or change weights: written from the description of the format,
independently of src/formats/safetensors*.c, so that each implementation tests the other. st.py does so with numpy.

  weights_file.py same FILE FILE            exit code 1 unless the tensors are equal, in the same order; metadata may differ
  weights_file.py zeros FILE TENSOR         "ZEROS ELEMENTS SHAPE"
  weights_file.py fill FILE OUT TENSOR VALUE [COUNT]   the first COUNT elements of a tensor (default: all) get a value; without checksums
  weights_file.py drop-sums PATH...         removes the checksums from files, or from all files of step folders, as if an older version had
                                            written them
"""
import json
import os
import struct
import sys


def read(path):
    """({name: (type, shape, bytes)} in the order of the file, metadata)"""
    with open(path, "rb") as f:
        data = f.read()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    meta = header.pop("__metadata__", {})
    body = data[begin:]
    spans = sorted(t["data_offsets"] for t in header.values())
    assert [a for a, _ in spans] + [len(body)] == [0] + [b for _, b in spans], f"{path}: holes, overlaps, or bytes left over"
    return {name: (t["dtype"], t["shape"], body[slice(*t["data_offsets"])]) for name, t in header.items()}, meta


def write(path, tensors, meta):
    """Without the checksums of `meta`."""
    table, body = {}, b""
    meta = {k: v for k, v in meta.items() if not k.endswith("_crc32c")}
    if meta:
        table["__metadata__"] = meta
    for name, (kind, shape, data) in tensors.items():
        table[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    head = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + body)


def floats(tensor):
    kind, _, data = tensor
    assert kind == "F32", kind
    return struct.unpack(f"<{len(data) // 4}f", data)


def fill(path, out, name, value, count=None):
    tensors, meta = read(path)
    kind, shape, data = tensors[name]
    new = struct.pack("<f", float(value)) * (int(count) if count else len(data) // 4)
    tensors[name] = kind, shape, new + data[len(new):]
    write(out, tensors, meta)


def drop_sums(given):
    if not os.path.isdir(given):
        return write(given, *read(given))
    for name in os.listdir(given):
        if name.endswith(".safetensors"):
            drop_sums(os.path.join(given, name))
    if os.path.exists(os.path.join(given, "checksums.txt")):
        os.remove(os.path.join(given, "checksums.txt"))


def main(command, *args):
    if command == "same":
        one, two = read(args[0])[0], read(args[1])[0]
        sys.exit(list(one.items()) != list(two.items()))
    elif command == "zeros":
        tensor = read(args[0])[0][args[1]]
        values = floats(tensor)
        print(values.count(0), len(values), tensor[1])
    elif command == "fill":
        fill(*args)
    else:
        for given in args:
            drop_sums(given)


if __name__ == "__main__":
    main(*sys.argv[1:])
