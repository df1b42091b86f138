#!/usr/bin/env python3
"""test_onnx_int8.py: the ONNX file of a quantised network: every QuantizeLinear and DequantizeLinear names its zero points, which have the
shape of the scales and the type of the integers; with --reduce-range no weight is outside -64 ... 63, so that the sum of two products with 255
fits into 16 bits; and the probabilities are those of `cresnet predict`: computed with numpy by the definitions of the operators, and by
onnxruntime without optimisation, with it, and with session.x64quantprecision, its switch for processors without VNNI, on this processor and on
an emulated one without AVX-512. Comparisons need numpy, onnxruntime (peers.py) and qemu-x86_64."""
import json
import os
import platform
import random
import re
import shutil
import struct
import subprocess

from support import ROOT, TINY_MODEL, check, ends, good, predicted, run, skip
import onnx_runtime
import onnx_text
import peers
import png

onnx_numpy = f"{ROOT}/tests/tools/onnx_numpy.py"

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


def zero_points(path):
    nodes, initializers, _ = onnx_text.graph_of(path)
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


def has_dot_products():
    """Whether this processor adds 8-bit products in 32 bits. Optimised x86 kernels of onnxruntime for other processors saturate sums of two
    products, unless the switch is set or the weights have 7 bits."""
    with open("/proc/cpuinfo") as f:
        text = f.read()
    return not re.search(r"^flags\s*:", text, re.M) or bool(re.search(r"avx512_vnni|avx_vnni", text))


def near(name, ours, theirs):
    far = [max(abs(a - b) for a, b in zip(p, q)) for p, q in zip(ours, theirs)] or [1]
    check(f"{name}: probabilities", max(far) <= FARTHEST and sum(far) / IMAGES <= MEAN, far)


def weights(path, least, most):
    """Checks the range of the 8-bit weights, and that it is used; 4-D and 2-D tensors of int8 are weights, vectors are zero points."""
    _, initializers, _ = onnx_text.graph_of(path)
    integers = [struct.unpack(f"{len(raw)}b", raw) for kind, dims, raw in initializers.values() if kind == INT8 and len(dims) > 1]
    check(f"{path}: range of weights", len(integers) == 7 and least <= min(map(min, integers)) and max(map(max, integers)) == most, integers)
    pairs = 255 * max(abs(a) + abs(b) for some in integers for a, b in zip(some, some[1:]))
    check(f"{path}: two products fit into 16 bits: {most == 63}", (pairs <= 32767) == (most == 63), pairs)


def metadata():
    """All values are JSON: what an image needs before it is the input, and the names of the classes."""
    ends("export with other sizes", 0, [], "export", "Q", "-o", "m.onnx", "data.eval_resize=20", "data.eval_crop=12")
    names = sorted(os.listdir("shapes/val"))
    want = {"resize": 20, "interpolation": "bilinear", "crop": [12, 12], "fit": "crop", "bits": 8, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225],
            "class_names": names}
    for file, sizes in (("m.onnx", {}), ("Q.onnx", {"resize": SIZE, "crop": [SIZE, SIZE]})):
        _, _, meta = onnx_text.graph_of(file)
        check(f"{file}: metadata", meta == {**want, **sizes}, meta)


def compare(run_folder, ours):
    """Of run Q the weights have 8 bits, of run N 7."""
    file, narrow = f"{run_folder}.onnx", run_folder == "N"
    with_numpy = peers.interpreter("numpy")
    if with_numpy:
        ran = subprocess.run([with_numpy, "-B", onnx_numpy, "pixels.json", str(SIZE), file], capture_output=True, text=True)
        check(f"{file}: numpy", ran.returncode == 0, ran.stderr)
        near(f"{file}: numpy", ours, json.loads(ran.stdout) if ran.returncode == 0 else [])
    else:
        skip("no python3 with numpy: not compared")
    python, qemu = peers.interpreter("onnxruntime", "numpy"), shutil.which("qemu-x86_64")
    if not python:
        skip("no python3 with onnxruntime: not compared")
        return
    haswell = [qemu, "-cpu", "Haswell"] if qemu and platform.machine() == "x86_64" else []
    if not haswell:
        skip("no qemu-x86_64: no processor without AVX-512")
    for level, switch in (("ORT_DISABLE_ALL", "0"), ("ORT_ENABLE_ALL", "0"), ("ORT_ENABLE_ALL", "1")):
        exact = narrow or level == "ORT_DISABLE_ALL" or switch == "1"
        for emulator in [[]] * (exact or has_dot_products()) + [haswell] * (exact and bool(haswell)):
            name = f"{file}: onnxruntime, {level}, switch {switch}{', emulated' * bool(emulator)}"
            theirs, said = onnx_runtime.probabilities(python, "pixels.json", SIZE, [file], level, switch, emulator)
            check(name, theirs, said[-400:])
            near(name, ours, theirs.get(file, []))


def main():
    with open("net.ini", "w") as f:
        f.write(CONFIG)
    for command in (("train", "net.ini", "-o", "R"), ("quantize", "R", "-o", "Q"), ("quantize", "R", "-o", "N", "--reduce-range"),
                    ("export", "Q", "-o", "Q.onnx"), ("export", "N", "-o", "N.onnx")):
        good(" ".join(command), *command)
    zero_points("Q.onnx")
    zero_points("N.onnx")
    weights("Q.onnx", -127, 127)
    weights("N.onnx", -64, 63)
    metadata()
    os.mkdir("images")
    pixels = []
    for i in range(IMAGES):
        pixels.append(png.write(f"images/{i:02}.png", SIZE, SIZE, rectangle(random.Random(i))))
    with open("pixels.json", "w") as f:
        json.dump(pixels, f)
    for run_folder in ("Q", "N"):
        ours, _ = predicted(run_folder, "images")
        classes = {p.index(max(p)) for p in ours}
        check("the images are of several classes, with sure and unsure predictions", len(classes) > 3 and max(map(max, ours)) - min(map(max, ours)) > 0.3, ours)
        compare(run_folder, ours)


run(main)
