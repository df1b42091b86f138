#!/usr/bin/env python3
"""test_data_lists.py: data.exclude and data.labels: which images and labels a command then sees, in data of every kind;
training and resuming; and lists that do not fit the dataset, which are one clear error."""
import csv
import io
import json
import os
import shutil
import tarfile
from support import TINY_MODEL, check, cresnet, ends, good, run


def write(path, *lines):
    with open(path, "w", newline="") as f:
        f.write("\n".join(lines) + "\n")


def counts(*keys, config="set.ini"):
    ran = good("stat", "data", "stat", config, "--json", *keys)
    found = json.loads(ran.stdout or '{"train": {"classes": []}, "val": {"classes": []}}')
    return {split: {c["class"]: c["images"] for c in found[split]["classes"]} for split in ("train", "val")}


def labelled(*keys):
    """{file: class} of the images that an evaluation sees."""
    ran = good("eval", "eval", "net", "--csv", "-", *keys)
    return {row["file"]: row["class"] for row in csv.DictReader(ran.stdout.splitlines())}


def refused(name, text, *keys, config="set.ini", code=(1, 2)):
    ran = cresnet("data", config, "-q", *keys)
    check(name, ran.returncode in code and text in ran.stderr and sum(line.startswith("cresnet ") for line in ran.stderr.splitlines()) == 1, (ran.returncode, ran.stderr))


def main():
    good("images", "data", "shapes", "set", "data.train_images=40", "data.val_images=20")
    write("set.ini", TINY_MODEL + "[data]\nkind = folder\nroot = set\n[train]\nbatch = 8\nepochs = 1\ndevice = cpu\nthreads = 1")
    classes = sorted(os.listdir("set/train"))
    files = {split: [f"{split}/{k}/{f}" for k in classes for f in sorted(os.listdir(f"set/{split}/{k}"))] for split in ("train", "val")}
    good("training", "train", "set.ini", "-o", "net")

    gone = [files["train"][0], files["train"][1], files["val"][0]]
    write("gone.csv", "reason,FILE,other", f"blurred,{gone[0]},", f'"same, as",./{gone[1]},1', f"blurred,{os.path.abspath('set')}/{gone[2]},", f"again,{gone[0]},")
    got = counts("data.exclude=gone.csv")
    want = {"train": {k: 4 - 2 * (k == classes[0]) for k in classes}, "val": {k: 2 - (k == classes[0]) for k in classes}}
    check("counts", got == want, got)
    seen, all_of = labelled("data.exclude=gone.csv"), labelled()
    check("images of the split", seen == {f: c for f, c in all_of.items() if not f.endswith(gone[2])} and len(seen) == 19, len(seen))

    moved, folder = files["val"][3], os.path.abspath("set")
    write("labels.csv", "file,score,label", f"{moved},0.9,{classes[5]}", f"{files['train'][0]},0.8,{classes[1]}", f"{gone[2]},1,{classes[7]}")
    seen = labelled("data.labels=labels.csv")
    check("labels", seen == {**all_of, f"{folder}/{moved}": classes[5], f"{folder}/{gone[2]}": classes[7]}, len(seen))
    got = counts("data.labels=labels.csv", "data.exclude=gone.csv")
    want["val"][moved.split("/")[1]] -= 1
    want["val"][classes[5]] += 1
    check("both: excluded images keep no label", got == want, got)
    ran = cresnet("data", "set.ini", "data.labels=labels.csv", "data.exclude=gone.csv")
    check("a line says so", "training set: 2 of 40 images are left out, 0 have other labels" in ran.stderr, ran.stderr)

    # a held-out fraction stays as it was
    split = ["data.root=set/train", "data.val_fraction=0.25"]
    before = labelled(*split)
    first = sorted(before)[0]
    write("first.csv", "file", os.path.relpath(first, "set/train"))
    after = labelled(*split, "data.exclude=first.csv")
    check("the fraction", after == {f: c for f, c in before.items() if f != first}, (len(before), len(after)))

    # a CSV list, a packed file and CIFAR's format have names of their own
    for part in ("train", "val"):
        write(f"set/{part}.csv", "file,label", *(f"{f},{f.split('/')[1]}" for f in files[part]))
    got = counts("data.kind=csv", "data.exclude=gone.csv")
    check("a CSV list", got["train"][classes[0]] == 2 and sum(got["val"].values()) == 19, got)
    good("pack", "data", "pack", "set.ini", "packed", "data.exclude=gone.csv")
    got = counts("data.kind=packed", "data.root=packed")
    check("packed", got["train"][classes[0]] == 2 and sum(got["val"].values()) == 19, got)
    write("place.csv", "file", "train.crpk[3]")
    check("an image of a packed file", sum(counts("data.kind=packed", "data.root=packed", "data.exclude=place.csv")["train"].values()) == 37)

    write("place.csv", "file", "none.crpk[3]")
    refused("another packed file", "no image none.crpk[3] (1 of 1 names are unknown)", "data.kind=packed", "data.root=packed", "data.exclude=place.csv")

    # CIFAR's files and archives have many images each: names that neither split has are found there too
    os.mkdir("cifar")
    for part in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        with open(f"cifar/{part}.bin", "wb") as f:
            f.write(b"".join(bytes([i]) + bytes(3072) for i in range(10)))  # all later images are black, of the first class
            f.truncate(10000 * 3073)
    cifar = ["data.kind=cifar10", "data.root=cifar"]
    write("place.csv", "file", "data_batch_2.bin[3]", "cifar/test_batch.bin[4]")
    got = counts("data.exclude=place.csv", *cifar)
    check("CIFAR", sum(got["train"].values()) == 49999 and sum(got["val"].values()) == 9999, got)
    write("place.csv", "file,label", "test_batch.bin[4],airplane", "data_batch_5.bin[0],truck")
    got = counts("data.labels=place.csv", *cifar)
    check("a label of CIFAR", list(got["val"].values()) == [9992, 1, 1, 1, 0, 1, 1, 1, 1, 1] and got["train"]["truck"] == 6, got)
    write("place.csv", "file", "data_batch_2.bin[3]", "data_batch_2.bin[10000]")
    refused("no image of CIFAR", "line 3: the dataset has no image data_batch_2.bin[10000] (1 of 2 names are unknown)", "data.exclude=place.csv", *cifar)
    os.makedirs("tars/train")
    os.makedirs("tars/val")
    for part in ("train", "val"):
        with tarfile.open(f"tars/{part}/{part}-0.tar", "w") as archive:
            for i, name in enumerate(files[part]):
                archive.add(f"set/{name}", f"{i:03}.png")
                info = tarfile.TarInfo(f"{i:03}.cls")
                info.size = 1
                archive.addfile(info, io.BytesIO(b"%d" % classes.index(name.split("/")[1])))
    tars = ["data.kind=tar", "data.root=tars"]
    write("place.csv", "file", "train/train-0.tar:003.png", "val/val-0.tar:004.png")
    got = counts("data.exclude=place.csv", *tars)
    check("archives", sum(got["train"].values()) == 39 and sum(got["val"].values()) == 19, got)
    write("place.csv", "file", "train/train-0.tar:003.png", "train/train-0.tar:040.png")
    refused("no image of an archive", "the dataset has no image train/train-0.tar:040.png (1 of 2 names are unknown)", "data.exclude=place.csv", *tars)
    write("place.csv", "file", "train.crpk[38]")
    refused("no image of a packed file", "no image train.crpk[38] (1 of 1 names are unknown)", "data.kind=packed", "data.root=packed", "data.exclude=place.csv")
    write("place.csv", "file", files["train"][2], "train/gone.png")
    refused("a file that no list names", "no image train/gone.png", "data.kind=csv", "data.exclude=place.csv")

    # training sees the lists, and a resumed run refuses others
    good("training with lists", "train", "set.ini", "-o", "less", "data.exclude=gone.csv", "data.labels=labels.csv", "--steps", "2")
    check("its evaluation has them", json.loads(cresnet("eval", "less", "--json", "-q").stdout)["images"] == 19)
    good("it resumes", "train", "--resume", "less", "--steps", "3")
    write("labels.csv", "file,label", f"{files['train'][9]},{classes[8]}")
    ends("other labels are other data", 2, "--force", "train", "--resume", "less", "--steps", "4", "-q")

    # lists that do not fit
    write("bad.csv", "file", files["train"][3], "train/none/1.png", "train/none/2.png")
    refused("images that are gone", "line 3: the dataset has no image train/none/1.png (2 of 3 names are unknown)", "data.exclude=bad.csv")
    write("bad.csv", "file", "train/a[1].png")
    refused("a name with a bracket", "no image train/a[1].png", "data.exclude=bad.csv")
    refused("another dataset", "no image train/", "data.exclude=gone.csv", "data.root=set/val", "data.val_fraction=0.5")
    write("bad.csv", "file,label", f"{moved},nothing")
    refused("an unknown class", f"bad.csv:2: the dataset has no class nothing; its first one is {classes[0]}", "data.labels=bad.csv")
    write("bad.csv", "file,label", f"{moved},{classes[1]}", f"./{moved},{classes[2]}")
    refused("two labels", f"bad.csv:3: {moved} has the label {classes[2]} here and {classes[1]} in line 2", "data.labels=bad.csv")
    write("bad.csv", "file", *(f for f in files["train"] if f.startswith(f"train/{classes[4]}/")))
    refused("an empty class", f"the class {classes[4]} has no image left for training", "data.exclude=bad.csv")
    write("bad.csv", "reason,file", f",{moved}")
    ends("other columns may be empty", 0, [], "data", "set", "data.exclude=bad.csv")
    write("bad.csv", *files["val"])
    refused("no header", "bad.csv: no column has the name file", "data.exclude=bad.csv")
    write("bad.csv", "file,other", moved)
    refused("no column label", "bad.csv: no column has the name label", "data.labels=bad.csv")
    write("bad.csv", "file,label", moved)
    refused("too few fields", "bad.csv:2: the label is empty", "data.labels=bad.csv")
    write("bad.csv", "file,label", f'"{moved},x')
    refused("quotes", "bad.csv:2: a quote is missing", "data.labels=bad.csv")
    write("bad.csv", '"a\rb",c,d,e,f,g,h,i,file', moved)
    refused("quotes around a line end", "bad.csv:1: a quote is missing", "data.exclude=bad.csv")
    write("bad.csv", "file,label", f"{moved},")
    refused("an empty label", "bad.csv:2: the label is empty", "data.labels=bad.csv")
    refused("no file", "nothing.csv", "data.exclude=nothing.csv")
    with open("bad.csv", "wb") as f:
        f.write("file\n".encode("utf-16"))
    refused("UTF-16", "is text in UTF-16: save it as UTF-8", "data.exclude=bad.csv")
    refused("several labels per image", "[data] labels = labels.csv: needs one label per image", "data.kind=csv", "data.multi_label=yes", "data.labels=labels.csv", code=(2,))
    write("bad.csv", "file")
    check("an empty list changes nothing", counts("data.exclude=bad.csv") == counts())
    shutil.rmtree("set/val")
    write("one.csv", "file", files["train"][0])
    good("without val/", "data", "stat", "set.ini", "data.exclude=one.csv", "data.val_fraction=0.25", "--json")


run(main)
