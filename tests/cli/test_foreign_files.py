#!/usr/bin/env python3
"""test_foreign_files.py: weights that other programs saved in other ways: classifiers of other names or several layers, one network in several
files (Hugging Face's index), files that are no weights, tensors whose elements do not follow one another. The networks and helpers are those of
test_foreign_weights.py."""
import collections
import json
import os
import struct

from test_foreign_weights import A, B, CONFIG, loads, refused, same, under, write  # also adds tests/tools to the path
from support import check, cresnet, ends, run, skip
import torch_file as t
import weights_file


def head(tensors, layers):
    """The network with a classifier of these layers: {name: key of a tensor of A, or a tensor}."""
    out = {n: v for n, v in tensors.items() if not n.startswith("fc.")}
    return {**out, **{n: tensors[v] if isinstance(v, str) else v for n, v in layers.items()}}


def heads():
    for name in "fc.1", "fc.0", "linear", "classifier", "classifier.1", "head":
        for prefix in "", "module.":
            write("head.pth", under(prefix, head(A, {f"{name}.weight": "fc.weight", f"{name}.bias": "fc.bias"})))
            loads(f"a classifier named {prefix}{name}", "head.pth", A, silent=["does not", "also has"])
    two = head(A, {"fc.0.weight": ("F32", (5, 4), bytes(80)), "fc.0.bias": ("F32", (5,), bytes(20)),
                   "fc.3.weight": ("F32", (2, 5), bytes(40)), "fc.3.bias": ("F32", (2,), bytes(8))})
    write("mlp.pth", two)
    refused("a classifier of two layers", "mlp.pth", '"fc.weight" [2, 4] is missing', '"fc.3.weight" [2, 5] is in the file')
    with open("open.ini", "w") as f:
        f.write(CONFIG.replace("classes = %d\n", "") % 4)
    refused("two layers, and no number of classes", "mlp.pth", '"fc.0.weight"', "no single linear layer", "model.head=new", config="open.ini")
    write("vgg.pth", {f"features.{i}.weight": ("F32", (4,), bytes(16)) for i in range(9)})
    refused("no ResNet, and no number of classes", "vgg.pth", "9 tensors", '"features.0.weight"', "model.classes=N", config="open.ini")
    write("dropout.pth", head(A, {"fc.1.weight": "fc.weight", "fc.1.bias": "fc.bias"}))
    loads("the number of classes is that of fc.1", "dropout.pth", A, '"fc.1.weight"', config="open.ini")
    body = [n for n, v in A.items() if v[1] and not n.startswith("fc.")]
    for given, said, extra in (("mlp.pth", "no single linear layer: new classifier of 2", ["model.head=new"]), ("mlp.pth", "new classifier of 2", []),
                               ("dropout.pth", "classifier of 2 classes replaced", ["model.head=new"])):
        ends(f"{given} {extra}: trains", 0, said, "train", "net.ini", f"model.weights={given}", *extra, "--steps", "1", "-o", f"H-{len(extra)}-{given}", "optim.lr=0", "optim.weight_decay=0")
        trained = weights_file.read(f"H-{len(extra)}-{given}/last/model.safetensors")[0]
        check(f"{given} {extra}: the body is that of the file", all(trained[n][2] == A[n][2] for n in body if ".running" not in n))
    ran = cresnet("train", "net.ini", "model.weights=dropout.pth", "--steps", "1", "-o", "H2", "optim.lr=0", "optim.weight_decay=0")
    trained = weights_file.read("H2/last/model.safetensors")[0] if ran.returncode == 0 else {}
    check("a classifier that fits is kept", trained and trained["fc.weight"][2] == A["fc.weight"][2], ran.stderr)


def split(folder, tensors, files, ending="safetensors", stem="model"):
    """The tensors in several files with their index, as Hugging Face writes them."""
    os.makedirs(folder, exist_ok=True)
    names = [f"{stem}-{i + 1:05}-of-{files:05}.{ending}" for i in range(files)]
    place = {n: names[i * files // len(tensors)] for i, n in enumerate(tensors)}
    for name in names:
        write(f"{folder}/{name}", {n: v for n, v in tensors.items() if place[n] == name})
    index = f"{folder}/{stem}.{ending}.index.json"
    with open(index, "w") as f:
        json.dump({"metadata": {"total_size": sum(len(v[2]) for v in tensors.values())}, "weight_map": place}, f, indent=2)
    return index, place


def shards():
    index, place = split("hub", A, 3)
    loads("three shards", index, A)
    loads("a folder of shards", "hub", A)
    ran = cresnet("train", "net.ini", "model.weights=hub", "--steps", "1", "-o", "S", "optim.lr=0", "optim.weight_decay=0")
    trained = weights_file.read("S/last/model.safetensors")[0] if ran.returncode == 0 else {}
    check("train from a folder of shards", trained and trained["fc.weight"][2] == A["fc.weight"][2], ran.stderr)
    loads("shards with a prefix", split("prefixed", under("model.", A), 2)[0], A, silent=["does not"])
    loads("PyTorch's shards", split("bin", A, 2, "bin", "pytorch_model")[0], A)
    loads("a network in the shards", split("two", {**under("a.", A), **under("b.", B)}, 2)[0] + ":b", B)
    ran = cresnet("export", index, "-o", "joined.safetensors")
    check("shards: export joins them", ran.returncode == 0 and same(weights_file.read("joined.safetensors")[0], A), ran.stderr)
    one = "hub/model-00002-of-00003.safetensors"
    refused("one shard", one, "one of 3 files", "hub/model.safetensors.index.json")
    write("model-00001-of-00001.safetensors", A)
    loads("the only shard", "model-00001-of-00001.safetensors", A)

    def broken(name, text, *said, **changes):
        with open("hub/x.index.json", "w") as f:
            json.dump({"weight_map": {**place, **changes}}, f) if text is None else f.write(text)
        refused(name, "hub/x.index.json", "hub/x.index.json: not a valid index", *said)

    broken("a tensor that is not there", None, '"more"', "is not in", **{"more": place["fc.bias"]})
    broken("a tensor of another shard", None, '"fc.bias"', "is not in", **{"fc.bias": place["conv1.weight"]})
    broken("a shard of another folder", None, "not the name of a file in this folder", **{"fc.bias": "../head.pth"})
    broken("no weight_map", '{"metadata": {}}', "no weight_map")
    broken("an index that is cut off", '{"weight_map": {"fc.bi', "byte ")
    broken("a tensor twice", '{"weight_map": {"fc.bias": "%s", "fc.bias": "%s"}}' % (2 * (place["fc.bias"],)), 'duplicate tensor "fc.bias"')
    broken("not all tensors", '{"weight_map": {"fc.bias": "%s"}}' % place["fc.bias"], "but it names 1")
    with open("hub/x.index.json", "w") as f:
        json.dump({"weight_map": {"fc.bias": "x.index.json"}}, f)
    refused("an index that names itself", "hub/x.index.json", "is a text in JSON, not weights")
    os.remove(one)
    refused("a shard is missing", index, one)


def kinds():
    """Files that are no weights: the message says what they are, under any name and in every command."""
    for name, data, said in (("junk.pth", bytes(range(90, 200)), ": not a PyTorch file"), ("junk.pt", b"some text\n", ": not a PyTorch file"),
                             ("page.pth", b"\n<!DOCTYPE html><html>", "the download has failed"), ("page.safetensors", b"<html></html>", "is a web page"),
                             ("lfs.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
                             ("empty.pth", b"", "is empty"), ("net.onnx", bytes.fromhex("0808120763726573"), "is an ONNX file")):
        with open(name, "wb") as f:
            f.write(data)
        refused(name, name, f"{name}: ", said)
        for command in ["predict", name, "image.png"], ["eval", name], ["export", name, "-o", "y.safetensors"]:
            ran = cresnet(*command)
            check(f"{command[0]} {name}", ran.returncode and ran.stderr.count(f"cresnet {command[0]}: ") == 1 and said in ran.stderr, ran.stderr)


def strided():
    """A tensor whose elements do not follow one another in the file is read once, not once for each piece of it."""
    side = 1024
    values = struct.pack(f"<{side * side}f", *((i * 7919 % 65536) / 64 for i in range(side * side)))
    rows = [values[4 * side * i:4 * side * (i + 1)] for i in range(side)]
    turned = b"".join(rows[k][4 * c:4 * c + 4] for c in range(side) for k in range(side))
    with open("strided.pth", "wb") as f:
        f.write(t.zipped(collections.OrderedDict(a=t.tensor(t.Storage("F32", values), 0, (side, side), (1, side)))))
    before = bytes_read()
    ran = cresnet("export", "strided.pth", "-o", "turned.safetensors")
    got = bytes_read() - before
    check("strided: transposed", ran.returncode == 0 and weights_file.read("turned.safetensors")[0]["a"][2] == turned, ran.stderr)
    if before == 0:
        skip("no count of bytes in /proc/self/io")
    else:
        check("strided: read once", got < 2 * len(values), got)


def bytes_read():
    """By this process and the processes that it has waited for; 0 where the system does not say."""
    try:
        with open("/proc/self/io") as f:
            return int(f.readline().split()[1])
    except OSError:
        return 0


def main():
    with open("net.ini", "w") as f:
        f.write(CONFIG % (4, 2))
    for part in heads, shards, kinds, strided:
        part()


run(main)
