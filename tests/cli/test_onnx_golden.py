#!/usr/bin/env python3
"""test_onnx_golden.py: the ONNX files of small networks are those of tests/golden/onnx, which onnxruntime has run. Needs no onnxruntime.

Five networks have every op that the export can write, with batch normalisation and folded. Their weights are written here by a formula.
For each file two things are stored: NAME.txt, its fields as text (tools/onnx_text.py), and in onnxruntime.json the class probabilities that
onnxruntime computed from it. The exported file must have the same text, and `cresnet predict` must give the same probabilities.

  test_onnx_golden.py update    writes the files again; needs onnxruntime (CRESNET_PEERS names an interpreter that has it) and refuses
                                files from which onnxruntime computes other probabilities than cresnet
"""
import json
import math
import os
import re
import sys

HERE = os.path.abspath(__file__)
TESTS = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, TESTS + "/tools")
import onnx_runtime
import onnx_text
import peers
import png
from support import ROOT, check, counted, cresnet, run

if not peers.with_modules(HERE, "numpy"):
    print("skip no python3 with numpy\n0 passed, 0 failed, 1 skipped")
    sys.exit(77)
import numpy as np
import st

GOLDEN = TESTS + "/golden/onnx"
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
    trained = cresnet("train", "-q", f"{name}.ini", "-o", f"{name}-run", "train.save_every=1")
    check(f"{name}: training", trained.returncode == 0, trained.stderr)
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
    ran = cresnet("export", f"{name}.ini", "--weights", f"{name}.safetensors", "--onnx", file, *(["--fold"] if fold else []))
    check(f"{file}: export", ran.returncode == 0, ran.stderr)
    return file


def text_of(file):
    """The file as text, without the version of the program."""
    with open(file, "rb") as f:
        text = "\n".join(onnx_text.lines(f.read())) + "\n"
    return re.sub(r'(?m)^producer_version "[0-9.]+"$', 'producer_version "*"', text)


def predicted(name):
    ran = cresnet("predict", f"{name}.ini", "--weights", f"{name}.safetensors", "--json", "-k", str(CLASSES), *(f"{i}.png" for i in range(IMAGES)))
    check(f"{name}: predict", ran.returncode == 0, ran.stderr)
    out = []
    for line in ran.stdout.splitlines():
        top = {t["label"]: t["probability"] for t in json.loads(line)["top"]}
        out.append([top[c] for c in range(CLASSES)])
    return np.array(out)


def differs(got, want):
    """The first line that differs."""
    a, b = got.splitlines(), want.splitlines()
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return f"line {i + 1}: {x!r}, want {y!r}"
    return f"{len(a)} lines, want {len(b)}"


def ops_written():
    """The ONNX op types in the source of the export."""
    with open(f"{ROOT}/src/model/onnx_nodes.c") as f:
        return set(re.findall(r'"([A-Z][A-Za-z]+)"', f.read()))


def golden(update):
    prepare()
    files = [export(name, fold) for name in NETS for fold in (False, True)]
    texts = {file: text_of(file) for file in files}
    ops = {op for text in texts.values() for op in re.findall(r'op_type "(\w+)"', text)}
    check("every op is in a golden file", ops == ops_written(), (ops, ops_written()))
    python = peers.interpreter("onnxruntime", "numpy")
    theirs, said = onnx_runtime.probabilities(python, "pixels.json", SIZE, files) if python else ({}, "")
    check("onnxruntime", theirs or not python, said)
    if update and not python:
        sys.exit("no python3 with onnxruntime: set CRESNET_PEERS")
    stored = theirs if update else json.load(open(f"{GOLDEN}/onnxruntime.json"))
    for name in NETS:
        ours = predicted(name)
        check(f"{name}: probabilities differ between images", abs(ours[0] - ours[1]).max() > 0.01, ours)
        for file in (f"{name}.onnx", f"{name}-folded.onnx"):
            check(f"{file}: stored probabilities", abs(ours - np.array(stored[file])).max() <= TOLERANCE, (ours.tolist(), stored[file]))
            if python:
                check(f"{file}: onnxruntime", abs(ours - np.array(theirs[file])).max() <= TOLERANCE, (ours.tolist(), theirs[file]))
    if update:
        if counted["failed"]:
            return
        os.makedirs(GOLDEN, exist_ok=True)
        for file, text in texts.items():
            with open(f"{GOLDEN}/{file[:-5]}.txt", "w") as f:
                f.write(text)
        with open(f"{GOLDEN}/onnxruntime.json", "w") as f:
            f.write("{" + ",\n ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in theirs.items()) + "}\n")
        return
    for file, text in texts.items():
        want = open(f"{GOLDEN}/{file[:-5]}.txt").read()
        check(f"{file}: text", text == want, differs(text, want))


run(lambda: golden(sys.argv[1:2] == ["update"]))
