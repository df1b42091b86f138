#!/usr/bin/env python3
"""test_finetune_classes.py: `cresnet finetune RUN DIR` with classes that were added, renamed or dropped: with a learning rate of 0 the rows of the
classifier are those of the run, by name. model.head = match in a configuration, and what cannot be matched."""
import glob
import os
import shutil

from support import TINY_MODEL, check, cresnet, ends, good, need, refused, run

need("numpy")
import numpy as np
import st

STILL = ["optim.lr=0", "optim.head_lr=0", "model.unfreeze=", "model.freeze=", "train.epochs=1", "data.image_size=16", "data.eval_crop=16",
         "data.eval_resize=18", "--device", "cpu", "--threads", "1"]


def rows(run):
    """{class: its row of the classifier, with the bias}"""
    tensors, _ = st.load(f"{run}/best/model.safetensors")
    with open(f"{run}/best/classes.txt") as f:
        names = f.read().split("\n")[:-1]
    return {name: np.append(tensors["fc.weight"][k], tensors["fc.bias"][k]) for k, name in enumerate(names)}


def finetuned(name, out, *args):
    ran = ends(name, 0, [], "finetune", *args, "-o", out, *STILL)
    return (rows(out) if ran.returncode == 0 else {}), ran.stderr


def compare(name, got, before, renamed, new):
    """Each class has the row of before[renamed.get(class, class)], but for the new ones."""
    kept = {k: renamed.get(k, k) for k in got if k not in new}
    check(f"{name}: rows", kept and all(np.array_equal(got[k], before[old]) for k, old in kept.items()))
    check(f"{name}: new rows", all(not any(np.array_equal(got[k], row) for row in before.values()) for k in new))


def main():
    good("images", "data", "shapes", "set", "data.train_images=80", "data.val_images=40")
    with open("tiny.ini", "w") as f:
        f.write(TINY_MODEL + "[data]\nkind = folder\nroot = set\n[train]\nbatch = 16\nepochs = 2\ndevice = cpu\nthreads = 1\n")
    good("training", "train", "tiny.ini", "-o", "net")
    before, classes = rows("net"), sorted(os.listdir("set/train"))

    got, said = finetuned("the same classes", "same", "net", "set")
    compare("the same classes", got, before, {}, [])
    check("the same classes: all are kept", sorted(got) == classes and "classifier: 10 of 10 classes keep their rows" in said, said)

    got, _ = finetuned("exchanged names", "exchanged", "net", "set", f"model.rename={classes[2]}={classes[3]},{classes[3]}={classes[2]}")
    compare("exchanged names", got, before, {classes[2]: classes[3], classes[3]: classes[2]}, [])

    shutil.copytree("set", "more")
    a, b, c, d = classes[1], classes[4], classes[6], classes[8]
    for split in ("train", "val"):
        shutil.copytree(f"more/{split}/{a}", f"more/{split}/aaa")       # added, and the first in the order
        shutil.rmtree(f"more/{split}/{b}")                              # dropped
        os.rename(f"more/{split}/{c}", f"more/{split}/zebra")           # renamed
        os.rename(f"more/{split}/{d}", f"more/{split}/{d.upper()}")     # another spelling
    got, said = finetuned("other classes", "other", "net", "more")
    compare("other classes", got, before, {d.upper(): d}, ["aaa", "zebra"])
    check("other classes are named", f"2 new: aaa, zebra" in said and f"2 dropped, which the images do not have: {b}, {c}" in said
          and "8 of 10 classes keep their rows" in said, said)
    got, said = finetuned("renamed", "renamed", "net", "more", f"model.rename={c}=zebra")
    compare("renamed", got, before, {d.upper(): d, "zebra": c}, ["aaa"])
    check("renamed: what is new", "1 new: aaa" in said and f"1 dropped, which the images do not have: {b}" in said, said)
    check("the file has the choice", "\nhead = match\n" in open("renamed.ini").read() and f"rename = {c}=zebra" in open("renamed.ini").read())
    ran = cresnet("train", "renamed.ini", "-o", "byhand", "-q")
    check("train reads the file", ran.returncode == 0 and all(np.array_equal(rows("byhand")[k], row) for k, row in got.items()), ran.stderr)
    good("the run is as any other", "eval", "renamed", "--json")
    _, said = finetuned("the same command again", "renamed", "net", "more", f"model.rename={c}=zebra")
    check("nothing is trained again", "the run renamed has ended" in said and not os.path.exists("renamed-2"), said)

    # a class that is added to the images of a run: the same command
    for split in ("train", "val"):
        shutil.copytree(f"more/{split}/{a}", f"more/{split}/nova")
    _, said = finetuned("a class more", "other", "net", "more")
    compare("a class more", rows("other-2"), rows("other"), {}, ["nova"])

    refused("not both", 2, "leave --weights and --model out", "finetune", "net", "set", "--weights", "net", "-o", "X")
    refused("no run", 2, "is no run folder", "finetune", "nowhere", "set", "-o", "X")
    refused("a run is no images", 2, "is a run, not a folder of images", "finetune", "set", "net", "-o", "X")
    refused("images are no run", 2, "is no run folder: it holds neither", "finetune", "more", "set", "-o", "X", *STILL)
    refused("three folders", 2, "", "finetune", "net", "set", "more", "-o", "X")
    refused("an unknown class", 2, "the weights have no class none", "finetune", "net", "set", "-o", "X", "model.rename=none=x", *STILL)
    refused("one name for two classes", 2, f"gives two classes of the weights the name {a}", "finetune", "net", "set", "-o", "X", f"model.rename={b}={a}", *STILL)
    refused("no pair", 2, "must be a list of old=new", "finetune", "net", "set", "-o", "X", "model.rename=x", *STILL)
    os.mkdir("alone")
    shutil.copy("net/last/model.safetensors", "alone/w.safetensors")
    refused("no names", 2, "has no class names", "train", "tiny.ini", "model.weights=alone/w.safetensors", "model.head=match", "-o", "X")
    check("nothing was written", not glob.glob("X*"), glob.glob("X*"))


run(main)
