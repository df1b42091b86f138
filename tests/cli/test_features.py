#!/usr/bin/env python3
"""test_features.py: `cresnet features`: pooled features and logits against the exported ONNX file, which numpy computes in float64
(tools/onnx_numpy.py), the names in the order of the rows, lists of images, images that cannot be read, and wrong calls."""
import csv
import os
import shutil

from support import TINY_MODEL, check, cresnet, good, need, refused, run

need("numpy")
import numpy as np
import onnx_numpy
import onnx_text
import png

BOUND = 2e-6  # of the largest value: both sides round to float32


def by_numpy(paths):
    nodes, initializers, meta = onnx_text.graph_of("net.onnx")
    images = np.array([png.read(path)[2] for path in paths], np.float64).reshape(-1, 32, 32, 3)
    values = onnx_numpy.evaluated(nodes, initializers, input=((images / 255 - meta["mean"]) / meta["std"]).transpose(0, 3, 1, 2))
    last = next(node for node in nodes if node["op_type"][0] == b"Gemm")
    return values[last["input"][0].decode()], values["logits"]


def close(name, got, want):
    check(name, got.dtype == np.float32 and got.shape == want.shape and abs(got - want).max() <= BOUND * abs(want).max(),
          (got.shape, want.shape, abs(got - want).max() if got.shape == want.shape else ""))


def rows(path):
    with open(path, newline="") as f:
        return list(csv.reader(f))


def main():
    good("images", "data", "shapes", "set", "data.train_images=60", "data.val_images=40")
    with open("tiny.ini", "w") as f:
        f.write(TINY_MODEL + "[data]\nkind = folder\nroot = set\n[train]\nbatch = 20\nepochs = 1\ndevice = cpu\nthreads = 1\n")
    good("training", "train", "tiny.ini", "-o", "net")
    good("export", "export", "net", "--onnx", "net.onnx", "--fold")

    os.mkdir("blank")  # a name that begins with a blank: the table names the file
    shutil.copy(next(os.path.join(place, names[0]) for place, _, names in os.walk("set/val") if names), "blank/ a.png")
    good("blanks", "features", "net", "blank", "-o", "blank/x.npy")
    good("blanks in a list", "features", "net", "blank/x.csv", "-o", "blank/y.npy")

    good("a folder", "features", "net", "set", "-o", "x.npy")
    names = rows("x.csv")
    files = sorted(os.path.relpath(os.path.join(at, f), "set") for at, _, found in os.walk("set") for f in found if f.endswith(".png"))
    check("names", names == [["file"], *([name] for name in files)], names[:3])
    features, logits = np.load("x.npy"), np.load("x.logits.npy", mmap_mode="r")
    want, want_logits = by_numpy([f"set/{row[0]}" for row in names[1:]])
    close("features", features, want)
    close("logits", logits, want_logits)
    check("features differ", np.ptp(features, axis=0).max() > 0.01)

    # a list with columns in another order, one image twice, a quoted name, and one absolute name
    shutil.copy(f"set/{files[5]}", "set/a, b.png")
    order = [files[3], files[0], files[3], os.path.abspath(f"set/{files[7]}"), "a, b.png"]
    with open("set/list.csv", "w", newline="") as f:
        csv.writer(f).writerows([["score", "label", "file"], *([i, f"class {i}", name] for i, name in enumerate(order))])
    good("a list", "features", "net", "set/list.csv", "-o", "y.npy")
    check("rows of a list", rows("y.csv")[1:] == [[name] for name in order], rows("y.csv"))
    at = [3, 0, 3, 7, 5]
    check("values of a list", np.array_equal(np.load("y.npy"), features[at]) and np.array_equal(np.load("y.logits.npy"), logits[at]))

    # test-time augmentation: the mean of the views, as that of the logits
    good("views", "features", "net", "set/list.csv", "-o", "v.npy", "--tta", "flip")
    check("the means of views", not np.array_equal(np.load("v.npy"), np.load("y.npy")) and np.load("v.npy").shape == (5, 8))

    # images that cannot be read have no row
    with open("set/train/broken.png", "w") as f:
        f.write("no image")
    ran = cresnet("features", "net", "set/train", "-o", "z.npy")
    check("a broken image", ran.returncode == 0 and "broken.png" in ran.stderr and "1 of 61 images could not be read" in ran.stderr, ran.stderr)
    check("it has no row", len(np.load("z.npy")) == 60 == len(rows("z.csv")) - 1 and "broken" not in open("z.csv").read())

    refused("an existing file", 2, "exists and is not a file that this command replaces", "features", "net", "set", "-o", "x.npy")
    good("--force", "features", "net", "set/val", "-o", "x.npy", "--force")
    check("it was replaced", len(np.load("x.npy")) == 40)
    refused("no folder for the output", 1, "cannot create: No such file or directory", "features", "net", "set", "-o", "none/x.npy")
    refused("a file in place of the folder", 1, "cannot create: Not a directory", "features", "net", "set", "-o", "x.npy/y.npy")
    refused("no output", 2, "no output given: give -o FILE.npy", "features", "net", "set")
    refused("another ending", 2, "must end with .npy", "features", "net", "set", "-o", "x.csv")
    refused("no images", 2, "give a RUN and a folder of images", "features", "net")
    os.mkdir("empty")
    refused("an empty folder", 1, "contains no images", "features", "net", "empty", "-o", "e.npy")
    with open("gone.csv", "w") as f:
        f.write(f"file\nset/{files[0]}\nset/gone.png\nset/gone2.png\n")
    refused("files that are gone", 1, "gone.csv:3: set/gone.png is not there (2 of 3 files are missing)", "features", "net", "gone.csv", "-o", "e.npy")
    with open("bad.csv", "w") as f:
        f.write("name,label\na.png,b\n")
    refused("no column", 1, "bad.csv: no column has the name file", "features", "net", "bad.csv", "-o", "e.npy")
    refused("no list", 1, "nothing.csv", "features", "net", "nothing.csv", "-o", "e.npy")
    refused("no network", 2, "no weights", "features", "tiny.ini", "set", "-o", "e.npy")
    check("nothing is left", not [name for name in os.listdir() if name.startswith("e.") or ".tmp." in name], os.listdir())


run(main)
