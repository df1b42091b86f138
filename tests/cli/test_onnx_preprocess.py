#!/usr/bin/env python3
"""test_onnx_preprocess.py: `data.fit` and `export --preprocess`. A small network is trained with each fit on images of many shapes; the
graph that prepares images, evaluated by tools/onnx_numpy.py, must give the probabilities of `predict`, and so must onnxruntime if there is
one. The run keeps its fit, and a resume with another one is refused."""
import json
import os
import re

from support import TINY_MODEL, check, ends, good, need, predicted, run
import peers
import png

need("numpy")
import numpy as np
import onnx_numpy
import onnx_text

FITS = ("crop", "squash", "letterbox")
SIZES = ((31, 20), (20, 31), (24, 24), (90, 9), (9, 90), (1, 1), (3, 2), (64, 48), (47, 40))  # width, height
KEYS = ("data.kind=folder", "data.root=images", "data.image_size=24", "data.crop=random_resized", "data.workers=0", "train.batch=4",
        "train.device=cpu", "train.threads=1", "train.eval_every=0")
TOLERANCE = 2e-5  # of a probability: float32 and float64; rounding of a pixel that lies between two values is told apart below


def pixel_of(seed):
    return lambda x, y: ((x * (37 + seed)) % 256, (y * 41 + x * y) % 256, (x * x + 3 * y * seed) % 256)


def draw():
    for split in ("train", "val"):
        for k, name in enumerate(("a", "b")):
            os.makedirs(f"images/{split}/{name}")
            for i, (w, h) in enumerate(SIZES):
                png.write(f"images/{split}/{name}/{i}.png", w, h, pixel_of(k * 20 + i))
    os.makedirs("photos")
    with open("tiny.ini", "w") as f:
        f.write(TINY_MODEL)
    return [np.array(png.write(f"photos/{i}.png", w, h, pixel_of(i + 50)), np.uint8).reshape(1, h, w, 3) for i, (w, h) in enumerate(SIZES)]


def train(fit):
    good(f"{fit}: train", "train", "tiny.ini", "-o", fit, f"data.fit={fit}", "train.steps=12", *KEYS)
    with open(f"{fit}/last/config.ini") as f:
        stored = f.read()
    check(f"{fit}: stored", re.search(rf"(?m)^fit *= *{fit}$", stored), stored)
    ends(f"{fit}: another fit on resume", 2, "data.fit", "train", "-q", "tiny.ini", "-o", fit, "--resume=auto", f"data.fit={FITS[FITS.index(fit) - 1]}", "train.steps=16", *KEYS)
    good(f"{fit}: resume", "train", f"{fit}/last/config.ini", "-o", fit, "--resume=auto", "train.steps=16")


def structure(file, fit, size):
    """Checks the inputs and the metadata; returns nodes and initializers."""
    nodes, initializers, meta = onnx_text.graph_of(file)
    with open(file, "rb") as f:
        text = "\n".join(onnx_text.lines(f.read()))
    inputs = re.search(r"(?s)\n  input\n(.*?)\n  output\n", text).group(1)
    check(f"{file}: input", 'name "images"' in inputs and "elem_type 2" in inputs, inputs)
    check(f"{file}: sizes", re.findall(r"dim_\w+ (\S+)", inputs) == ['"batch"', *size, "3"], inputs)
    check(f"{file}: metadata", (meta["fit"], meta["preprocess"], meta["crop"], meta["class_names"]) == (fit, True, [24, 24], ["a", "b"]), meta)
    check(f"{file}: opset", 'opset_import\n  version 17' in text)
    return nodes, initializers


def compare(file, fit, images):
    """The file's probabilities of each image, by the definitions of the operators and by onnxruntime, against those of `predict`."""
    nodes, initializers = structure(file, fit, ['"height"', '"width"'])
    ours = np.array(predicted(fit, "photos")[0])
    check(f"{file}: images differ", np.ptp(ours[:, 0]) > 0.01, ours)
    theirs = []
    for i, image in enumerate(images):
        values = onnx_numpy.evaluated(nodes, initializers, images=image)
        between = abs(values["images.small"] % 1 - 0.5).min(), abs(values["images.narrow"] % 1 - 0.5).min()
        theirs.append(onnx_numpy.softmax(values["logits"])[0])
        # the program rounds a weight to 22 bits, so that a value within 1e-4 of one half may be rounded the other way
        bound = TOLERANCE if min(between) > 1e-4 else 2e-2
        check(f"{file}: image {i}, {image.shape}", abs(theirs[i] - ours[i]).max() <= bound, (theirs[i], ours[i], between))
    runtime(file, images, np.array(theirs))


def runtime(file, images, want):
    python = peers.interpreter("onnxruntime", "numpy")
    if not python:
        return
    code = ("import json, sys, numpy as np, onnxruntime as o\ns = o.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
            "print(json.dumps([s.run(None, {'images': np.array(i, np.uint8)})[0][0].tolist() for i in json.load(sys.stdin)]))")
    ran = peers.subprocess.run([python, "-c", code, file], input=json.dumps([i.tolist() for i in images]), capture_output=True, text=True)
    check(f"{file}: onnxruntime", ran.returncode == 0, ran.stderr)
    got = onnx_numpy.softmax(np.array(json.loads(ran.stdout))) if ran.returncode == 0 else want + 1
    check(f"{file}: onnxruntime's probabilities", abs(got - want).max() <= 2e-2, abs(got - want).max(axis=1))


def fixed_size(images):
    """Without --dynamic the images have the network's size; without --preprocess --dynamic frees the sizes of the normalised input."""
    good("export", "export", "crop", "--onnx", "fixed.onnx", "--preprocess", "--fold")
    nodes, initializers = structure("fixed.onnx", "crop", ["24", "24"])
    values = onnx_numpy.evaluated(nodes, initializers, images=images[2])
    check("fixed size", abs(onnx_numpy.softmax(values["logits"])[0] - predicted("crop", "photos/2.png")[0][0]).max() < 2e-2)
    good("export --dynamic", "export", "crop", "--onnx", "free.onnx", "--dynamic")
    with open("free.onnx", "rb") as f:
        text = "\n".join(onnx_text.lines(f.read()))
    check("free sizes", re.findall(r"dim_\w+ (\S+)", text)[:4] == ['"batch"', "3", '"height"', '"width"'], text[-800:])
    ends("weights alone", 2, "need --onnx", "export", "crop", "-o", "w.safetensors", "--preprocess")


def deep_images():
    """Grey images of 16 bits."""
    sizes, images = SIZES[:5], []
    for i, (w, h) in enumerate(sizes):
        for folder in ("train/a", "train/b", "val/a", "val/b", "photos"):
            os.makedirs(f"deep/{folder}", exist_ok=True)
            pixels = png.write(f"deep/{folder}/{i}.png", w, h, lambda x, y: ((x * 2999 + y * (1009 + len(folder)) + i) % 65536,), 16)
        images.append(np.array(pixels, np.uint16).reshape(1, h, w, 1))
    keys = ("data.channels=1", "data.bits=16", "data.root=deep", "data.fit=letterbox", "train.steps=8")
    good("grey: train", "train", "tiny.ini", "-o", "grey", *[k for k in KEYS if k != "data.root=images"], *keys)
    good("grey: export", "export", "grey", "--onnx", "grey.onnx", "--preprocess", "--dynamic", "--fold")
    ours, (nodes, initializers, meta) = predicted("grey", "deep/photos")[0], onnx_text.graph_of("grey.onnx")
    check("grey: metadata", (meta["bits"], meta["fit"]) == (16, "letterbox"), meta)
    for image, want in zip(images, ours):
        got = onnx_numpy.softmax(onnx_numpy.evaluated(nodes, initializers, images=image)["logits"])[0]
        check(f"grey: {image.shape}", abs(got - want).max() < 1e-4, (got, want))


def explained():
    """The part that the network sees is marked in the image; a letterboxed image is seen whole."""
    for fit in FITS:
        good(f"{fit}: explain", "explain", fit, "photos/0.png", "-o", f"{fit}.png")
        check(f"{fit}: the picture", os.path.getsize(f"{fit}.png") > 100)


def test():
    images = draw()
    for fit in FITS:
        train(fit)
        file = f"{fit}.onnx"
        ends(f"{fit}: export", 0, [], "export", fit, "--onnx", file, "--preprocess", "--dynamic", "--fold")
        compare(file, fit, images)
    fixed_size(images)
    explained()
    deep_images()


run(test)
