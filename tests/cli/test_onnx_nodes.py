#!/usr/bin/env python3
"""test_onnx_nodes.py: every op that the ONNX export can write, in five networks, with batch normalisation and folded: the class probabilities of
`cresnet predict` are those of the exported file, which numpy computes in float64 by the definitions of the operators (tools/onnx_numpy.py),
and which onnxruntime computes, where there is one. The weights are written here by a formula.
"""
import json
import math
import re

from support import ROOT, check, ends, good, need, run
import onnx_runtime
import onnx_text
import peers
import png

need("numpy")
import numpy as np
import onnx_numpy
import st

SIZE, CLASSES, IMAGES = 12, 4, 2
TOLERANCE = 2e-6  # of a probability: both sides compute in float32
NETS = {
    "basic": "block = basic\nstem = cifar\ndepths = 1,1\nwidths = 4,8\nshortcut = A\n",
    "bottleneck": "block = bottleneck\nstem = imagenet\ndepths = 1,1\nwidths = 4,8\nshortcut = B\n",
    "deep": "block = basic\nstem = deep\ndepths = 1,1\nwidths = 16,32\nshortcut = D\nexcitation = yes\n",
    "blur": "block = basic\nstem = imagenet\ndepths = 1,1\nwidths = 4,8\nshortcut = B\nblur_pool = yes\n",
    "next": "block = bottleneck\nstem = imagenet\ndepths = 1,1\nwidths = 4,8\nshortcut = B\ngroups = 2\neca = yes\n",
}
CONFIG = f"""[model]
arch = custom
classes = {CLASSES}
%s[data]
kind = synthetic
image_size = {SIZE}
eval_resize = {SIZE}
train_images = 4
val_images = 4
workers = 0
[train]
batch = 4
steps = 1
device = cpu
threads = 1
"""


def values(name, at, shape):
    """Deterministic weights; every number is a multiple of a power of two. Variances and scales are positive."""
    count = int(np.prod(shape))
    number = ((np.arange(count, dtype=np.uint64) + np.uint64(977 * at)) * np.uint64(2654435761) >> np.uint64(7)) % np.uint64(33)
    number = (number.astype(np.float64) - 16) / 16  # -1 to 1
    if len(shape) > 1:
        number *= 2.0 ** (1 - round(math.log2(max(count / shape[0], 1)) / 2))
    elif name.endswith("running_var") or (name.endswith("weight") and len(shape) == 1):
        number = 1 + number / 2
    else:
        number /= 4
    return number.astype("<f4").reshape(shape)


def weights(name):
    """NAME.safetensors: the tensors of a run of the configuration, with values by the formula."""
    good(f"{name}: training", "train", f"{name}.ini", "-o", f"{name}-run", "train.save_every=1")
    tensors, _ = st.load(f"{name}-run/last/model.safetensors")
    new = {k: values(k, i, v.shape) if v.dtype == "<f4" else v for i, (k, v) in enumerate(sorted(tensors.items()))}
    st.save(f"{name}.safetensors", new, {"format": "pt"})


def pixels(image):
    """pixel(x, y) of an image."""
    if image == 0:
        return lambda x, y: ((x * 37) % 256, (y * 41 + x * y) % 256, (x * x + 3 * y) % 256)
    return lambda x, y: (255 if x > y else 0, (x * 90) % 256, 255 - 20 * y)


def prepare():
    with open("pixels.json", "w") as f:
        json.dump([png.write(f"{i}.png", SIZE, SIZE, pixels(i)) for i in range(IMAGES)], f)
    for name, model in NETS.items():
        with open(f"{name}.ini", "w") as f:
            f.write(CONFIG % model)
        weights(name)


def export(name, fold):
    file = f"{name}-folded.onnx" if fold else f"{name}.onnx"
    ends(f"{file}: export", 0, [], "export", f"{name}.ini", "--weights", f"{name}.safetensors", "--onnx", file, *(["--fold"] if fold else []))
    return file


def predicted(name):
    ran = ends(f"{name}: predict", 0, [], "predict", f"{name}.ini", "--weights", f"{name}.safetensors", "--json", "-k", str(CLASSES), *(f"{i}.png" for i in range(IMAGES)))
    out = []
    for line in ran.stdout.splitlines():
        top = {t["label"]: t["probability"] for t in json.loads(line)["top"]}
        out.append([top[c] for c in range(CLASSES)])
    return np.array(out)


def ops_written():
    """The ONNX op types in the source of the export."""
    with open(f"{ROOT}/src/model/onnx_nodes.c") as f:
        return set(re.findall(r'"([A-Z][A-Za-z]+)"', f.read()))


def by_numpy(file):
    """The class probabilities and the op types of a file. The decoder refuses fields and attributes that it does not know."""
    with open(file, "rb") as f:
        check(f"{file}: decoded", 'opset_import\n  version 17' in "\n".join(onnx_text.lines(f.read())))
    nodes, initializers, meta = onnx_text.graph_of(file)
    with open("pixels.json") as f:
        images = np.array(json.load(f), np.float64).reshape(-1, SIZE, SIZE, 3)
    values = onnx_numpy.evaluated(nodes, initializers, input=((images / 255 - meta["mean"]) / meta["std"]).transpose(0, 3, 1, 2))
    return onnx_numpy.softmax(values["logits"]), {node["op_type"][0].decode() for node in nodes}


def main():
    prepare()
    files = {name: [export(name, fold) for fold in (False, True)] for name in NETS}
    python, ops = peers.interpreter("onnxruntime", "numpy"), set()
    theirs, said = onnx_runtime.probabilities(python, "pixels.json", SIZE, sum(files.values(), [])) if python else ({}, "")
    check("onnxruntime", theirs or not python, said)
    for name in NETS:
        ours = predicted(name)
        check(f"{name}: probabilities differ between images", abs(ours[0] - ours[1]).max() > 0.01, ours)
        for file in files[name]:
            want, some = by_numpy(file)
            ops |= some
            check(f"{file}: numpy", abs(ours - want).max() <= TOLERANCE, (ours.tolist(), want.tolist()))
            if theirs:
                check(f"{file}: onnxruntime", abs(ours - np.array(theirs[file])).max() <= TOLERANCE, (ours.tolist(), theirs[file]))
    check("every op is in a file", ops == ops_written(), (ops, ops_written()))


run(main)
