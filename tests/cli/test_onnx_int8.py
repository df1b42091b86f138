#!/usr/bin/env python3
"""test_onnx_int8.py: the ONNX file of a quantised network: every QuantizeLinear and DequantizeLinear names its zero points, which have the
shape of the scales and the type of the integers, and onnxruntime computes the probabilities of `cresnet predict` from it: without
optimisation, with it, and with session.x64quantprecision, its switch for processors without VNNI. Comparisons need onnxruntime (peers.py)."""
import json
import os
import random
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools"))
import onnx_runtime
import onnx_text
import peers
import png
from support import TINY_MODEL, check, cresnet, predicted, run, skip

SIZE, IMAGES = 16, 32
UINT8, INT8, INT32 = 2, 3, 6  # TensorProto.DataType
# A value nearly halfway between two integers may be rounded to either, which is one of 255 steps of an activation. Saturation gives 0.1.
FARTHEST, MEAN = 0.005, 0.0005
CONFIG = f"""{TINY_MODEL.replace("4,8", "8,16")}
[data]
kind = shapes
root = shapes
image_size = {SIZE}
train_images = 320
val_images = 32
workers = 1
[train]
batch = 16
epochs = 20
eval_every = 0
device = cpu
threads = 1
[optim]
lr = 0.1
"""


def graph_of(path):
    """(nodes as {field: list of values}, initializers {name: (type, dims, bytes)})."""
    with open(path, "rb") as f:
        graph = next(value for name, _, value in onnx_text.fields(f.read(), "MODEL") if name == "graph")
    nodes, initializers = [], {}
    for name, kind, value in onnx_text.fields(graph, "GRAPH"):
        if name not in ("node", "initializer"):
            continue
        entry = {}
        for field, _, content in onnx_text.fields(value, kind):
            entry.setdefault(field, []).append(content)
        if name == "node":
            nodes.append(entry)
        else:
            initializers[entry["name"][0]] = entry["data_type"][0], entry.get("dims", []), entry.get("raw_data", [b""])[0]
    return nodes, initializers


def zero_points(path):
    nodes, initializers = graph_of(path)
    producers, kinds = {node["output"][0]: node for node in nodes}, {}
    for node in nodes:
        op, name = node["op_type"][0].decode(), node["name"][0].decode()
        if op not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        check(f"{name}: three operands", len(node["input"]) == 3, node["input"])
        if len(node["input"]) != 3:
            continue
        _, dims, _ = initializers[node["input"][1]]
        data_type, zero_dims, zeros = initializers[node["input"][2]]
        check(f"{name}: as many zero points as scales", zero_dims == dims and len(zeros) > 0, (zero_dims, dims))
        check(f"{name}: they are 0", not any(zeros))
        if op == "QuantizeLinear":
            continue
        source = initializers.get(node["input"][0])
        if source:  # weights and biases: the type of the integers, one scale for each channel
            check(f"{name}: type", data_type == source[0], (data_type, source[0]))
            check(f"{name}: one for each channel", dims == source[1][:1], (dims, source[1]))
            axis = {field: value for field, _, value in onnx_text.fields(node["attribute"][0], "ATTRIBUTE")}
            check(f"{name}: axis", axis["name"] == b"axis" and axis["i"] == 0, axis)
        else:  # activations: those of the QuantizeLinear before it
            check(f"{name}: the same zero point on both sides", producers[node["input"][0]]["input"][1:] == node["input"][1:])
        kinds[data_type] = kinds.get(data_type, 0) + 1
    check("weights, biases and activations", kinds.keys() == {UINT8, INT8, INT32} and kinds[INT32] == 7, kinds)


def rectangle(draw):
    """pixel(x, y) of an image: a rectangle on a plain background."""
    colours = [[draw.randrange(256) for _ in range(3)] for _ in range(2)]
    left, top, right, bottom = [draw.randrange(8 * side, 8 * side + 8) for side in (0, 0, 1, 1)]
    return lambda x, y: colours[left <= x <= right and top <= y <= bottom]


def is_exact(level, switch):
    """Without VNNI, optimised x86 kernels of onnxruntime saturate sums of two products, unless the switch is set."""
    with open("/proc/cpuinfo") as f:
        text = f.read()
    return level == "ORT_DISABLE_ALL" or switch == "1" or not re.search(r"^flags\s*:", text, re.M) or bool(re.search(r"avx512_vnni|avx_vnni", text))


def main():
    with open("net.ini", "w") as f:
        f.write(CONFIG)
    for command in (("train", "net.ini", "-o", "R", "-q"), ("quantize", "R", "-o", "Q", "-q"), ("export", "Q", "-o", "q.onnx")):
        ran = cresnet(*command)
        check(command[0], ran.returncode == 0, ran.stderr)
    zero_points("q.onnx")
    os.mkdir("images")
    pixels = []
    for i in range(IMAGES):
        pixels.append(png.write(f"images/{i:02}.png", SIZE, SIZE, rectangle(random.Random(i))))
    ours, _ = predicted("Q", "images")
    classes = {p.index(max(p)) for p in ours}
    check("the images are of several classes, with sure and unsure predictions", len(classes) > 3 and max(map(max, ours)) - min(map(max, ours)) > 0.3, ours)
    python = peers.interpreter("onnxruntime", "numpy")
    if not python:
        skip("no python3 with onnxruntime: not compared")
        return
    with open("pixels.json", "w") as f:
        json.dump(pixels, f)
    for level, switch in (("ORT_DISABLE_ALL", "0"), ("ORT_ENABLE_ALL", "0"), ("ORT_ENABLE_ALL", "1")):
        if not is_exact(level, switch):
            skip(f"{level} without the switch: this processor has no VNNI, and onnxruntime saturates")
            continue
        theirs, said = onnx_runtime.probabilities(python, "pixels.json", SIZE, ["q.onnx"], level, switch)
        check(f"onnxruntime, {level}, switch {switch}", theirs, said[-400:])
        far = [max(abs(a - b) for a, b in zip(p, q)) for p, q in zip(ours, theirs.get("q.onnx", []))] or [1]
        check(f"{level}, switch {switch}: probabilities", max(far) <= FARTHEST and sum(far) / IMAGES <= MEAN, far)


run(main)
