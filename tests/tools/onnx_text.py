#!/usr/bin/env python3
"""Prints an ONNX file as text, one line per field, in the order of the file.

  onnx_text.py FILE.onnx

The decoder is written from the protocol buffer encoding and onnx.proto, independently of src/formats/protobuf.c and src/model/onnx*.c.
It refuses fields that it does not know, varints that are longer than needed and bytes that are left over, so that two files with the same
text have the same bytes. Raw data of more than 8 numbers is shown as its SHA-256, its sum and its first numbers.
"""
import hashlib
import json
import struct
import sys

# message: {field: (name, type)}; a type in capitals is a message.
SCHEMA = {
    "MODEL": {1: ("ir_version", "int"), 2: ("producer_name", "string"), 3: ("producer_version", "string"), 7: ("graph", "GRAPH"),
              8: ("opset_import", "OPSET"), 14: ("metadata_props", "ENTRY")},
    "OPSET": {1: ("domain", "string"), 2: ("version", "int")},
    "ENTRY": {1: ("key", "string"), 2: ("value", "string")},
    "GRAPH": {1: ("node", "NODE"), 2: ("name", "string"), 5: ("initializer", "TENSOR"), 11: ("input", "VALUE"), 12: ("output", "VALUE")},
    "NODE": {1: ("input", "string"), 2: ("output", "string"), 3: ("name", "string"), 4: ("op_type", "string"), 5: ("attribute", "ATTRIBUTE")},
    "ATTRIBUTE": {1: ("name", "string"), 2: ("f", "float"), 3: ("i", "int"), 4: ("s", "string"), 8: ("ints", "int"), 20: ("type", "int")},
    "TENSOR": {1: ("dims", "int"), 2: ("data_type", "int"), 8: ("name", "string"), 9: ("raw_data", "raw")},
    "VALUE": {1: ("name", "string"), 2: ("type", "TYPE")},
    "TYPE": {1: ("tensor_type", "TENSOR_TYPE")},
    "TENSOR_TYPE": {1: ("elem_type", "int"), 2: ("shape", "SHAPE")},
    "SHAPE": {1: ("dim", "DIM")},
    "DIM": {1: ("dim_value", "int"), 2: ("dim_param", "string")},
}
RAW = {1: "f", 7: "q"}  # TensorProto.DataType: FLOAT, INT64
WIRE = {"int": 0, "float": 5}  # all others: 2, a length and bytes


def varint(data, at):
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            break
    if byte == 0 and shift > 7:
        raise ValueError("a varint is longer than needed")
    return value, at


def fields(data, message):
    """Yields (name, type, value) of each field."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag >> 3 not in SCHEMA[message]:
            raise ValueError(f"{message} has an unknown field {tag >> 3}")
        name, kind = SCHEMA[message][tag >> 3]
        if tag & 7 != WIRE.get(kind, 2):
            raise ValueError(f"{message}.{name} has wire type {tag & 7}")
        if kind == "int":
            value, at = varint(data, at)
            value -= (value >> 63) << 64
        elif kind == "float":
            (value,), at = struct.unpack_from("<f", data, at), at + 4
        else:
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
            if len(value) != length:
                raise ValueError(f"{message}.{name} ends early")
        yield name, kind, value


def raw_text(data, data_type):
    code = RAW[data_type]
    numbers = struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)
    show = lambda some: " ".join("%.9g" % n if code == "f" else str(n) for n in some)
    if len(numbers) <= 8:
        return show(numbers)
    return f"{len(numbers)} numbers, sum {sum(map(float, numbers)):.9g}, sha256 {hashlib.sha256(data).hexdigest()}: {show(numbers[:4])} ..."


def lines(data, message="MODEL", depth=0):
    data_type = None
    for name, kind, value in fields(data, message):
        head = "  " * depth + name
        if kind.isupper():
            yield head
            yield from lines(value, kind, depth + 1)
            continue
        if (message, name) == ("TENSOR", "data_type"):
            data_type = value
        if kind == "raw":
            value = raw_text(value, data_type)
        elif kind == "string":
            value = '"%s"' % value.decode("utf-8")
        elif kind == "float":
            value = "%.9g" % value
        yield f"{head} {value}"


def graph_of(path):
    """(nodes as {field: list of values}, initializers {name: (type, dims, bytes)}, metadata {key: value}); metadata values are JSON."""
    nodes, initializers, meta = [], {}, {}
    with open(path, "rb") as f:
        model = list(fields(f.read(), "MODEL"))
    for _, _, value in (field for field in model if field[0] == "metadata_props"):
        entry = {name: text.decode() for name, _, text in fields(value, "ENTRY")}
        meta[entry["key"]] = json.loads(entry["value"])
    for name, kind, value in fields(next(value for name, _, value in model if name == "graph"), "GRAPH"):
        if name not in ("node", "initializer"):
            continue
        entry = {}
        for field, _, content in fields(value, kind):
            entry.setdefault(field, []).append(content)
        if name == "node":
            nodes.append(entry)
        else:
            initializers[entry["name"][0]] = entry["data_type"][0], entry.get("dims", []), entry.get("raw_data", [b""])[0]
    return nodes, initializers, meta


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as f:
        print("\n".join(lines(f.read())))
