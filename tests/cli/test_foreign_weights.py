#!/usr/bin/env python3
"""test_foreign_weights.py: weights that other programs saved, with several networks in a file and prefixes before the names: which of them
train, eval, finetune, distillation, export, the library and scripts/pth_to_safetensors.py use, bit for bit, and what they say about it. The
files are written here as PyTorch writes them (torch_file.py)."""
import collections
import json
import os
import random
import struct
import subprocess
import sys

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
from support import BIN, ROOT, check, cresnet, ends, run, skip
import onnx_text
import peers
import png
import torch_file as t
import weights_file

CONFIG = """[model]
arch = custom
block = basic
stem = cifar
depths = 1
widths = %d
classes = %d
[data]
kind = synthetic
image_size = 8
train_images = 8
val_images = 8
workers = 0
[train]
batch = 4
device = cpu
threads = 1
"""


def state(seed, width=4, classes=2):
    """{name: (type, shape, bytes)}: random weights of the network of CONFIG, in the order of torchvision."""
    draw, out = random.Random(seed), {}

    def put(name, *shape, low=-1.0):
        count = 1
        for d in shape:
            count *= d
        out[name] = "F32", shape, struct.pack(f"<{count}f", *(draw.uniform(low, 1) for _ in range(count)))

    def bn(name):
        for part in "weight", "bias", "running_mean":
            put(f"{name}.{part}", width)
        put(f"{name}.running_var", width, low=0.5)
        out[f"{name}.num_batches_tracked"] = "I64", (), struct.pack("<q", 7)

    put("conv1.weight", width, 3, 3, 3)
    bn("bn1")
    for i in 1, 2:
        put(f"layer1.0.conv{i}.weight", width, width, 3, 3)
        bn(f"layer1.0.bn{i}")
    put("fc.weight", classes, width)
    put("fc.bias", classes)
    return out


A, B, WIDE = state(1), state(2), state(3, width=8)
COUNTER = {"n_averaged": ("I64", (), struct.pack("<q", 7))}
LOSS = {"criterion.weight": ("F32", (2,), struct.pack("<2f", 1, 1))}
DETECTOR = {"rpn.head.conv.weight": ("F32", (2, 4, 1, 1), bytes(32)), "roi_heads.box_predictor.bias": ("F32", (2,), bytes(8))}


def under(prefix, tensors):
    return {prefix + name: value for name, value in tensors.items()}


def averaged(tensors):
    """As torch.optim.swa_utils.AveragedModel."""
    return {**COUNTER, **under("module.", tensors)}


def write(path, thing):
    """Tensors, or a dictionary with dictionaries of tensors among its values."""
    def convert(v):
        if isinstance(v, dict):
            return collections.OrderedDict((key, convert(value)) for key, value in v.items())
        return t.tensor(t.Storage(v[0], v[2]), 0, v[1]) if isinstance(v, tuple) else v

    if path.endswith(".safetensors"):
        weights_file.write(path, dict(sorted(thing.items(), key=lambda item: (item[1][0] == "F32", item[0]))), {})
    else:
        with open(path, "wb") as f:
            f.write(t.zipped(convert(thing)))


def parameters(onnx):
    """{name: bytes} of the initializers of an ONNX file."""
    with open(onnx, "rb") as f:
        graph = next(value for name, _, value in onnx_text.fields(f.read(), "MODEL") if name == "graph")
    out = {}
    for name, kind, value in onnx_text.fields(graph, "GRAPH"):
        if name == "initializer":
            entry = {field: content for field, _, content in onnx_text.fields(value, kind)}
            out[entry["name"].decode()] = entry["raw_data"]
    return out


def loads(name, given, want, *said, config="net.ini", silent=()):
    """The network is `want`, bit for bit, and the messages contain every text of `said` and none of `silent`."""
    ran = ends(f"{name}: loaded", 0, [], "export", config, "--weights", given, "--onnx", "x.onnx")
    if ran.returncode == 0:
        values = {key: data for key, (_, shape, data) in want.items() if shape}
        check(f"{name}: bitwise identical", parameters("x.onnx") == values)
    for text in said:
        check(f"{name}: says {text}", text in ran.stderr, ran.stderr)
    for text in silent:
        check(f"{name}: does not say {text}", text not in ran.stderr, ran.stderr)


def refused(name, given, *texts, config="net.ini"):
    ran = cresnet("export", config, "--weights", given, "--onnx", "refused.onnx")
    check(f"{name}: refused", ran.returncode == 1 and not os.path.exists("refused.onnx"), ran.stderr)
    check(f"{name}: one error", ran.stderr.count("cresnet export: ") == 1, ran.stderr)
    for text in texts:
        check(f"{name}: says {text}", text in ran.stderr, ran.stderr)


def averages():
    write("ckpt.pth", {"model": A, "optimizer": {"state": {0: {"step": 1}}, "param_groups": []}, "model_ema": averaged(B), "epoch": 3})
    loads("torchvision: the weights", "ckpt.pth", A, '"model" is used', '"ckpt.pth:model_ema" (moving averages)')
    loads("torchvision: the averages", "ckpt.pth:model_ema", B, silent=["is used"])
    loads("torchvision: the weights by name", "ckpt.pth:model", A, silent=["is used"])
    refused("no such entry", "ckpt.pth:model_emu", 'no entry "model_emu"', '"ckpt.pth:model_ema"')
    refused("no such file", "none.pth:model", "none.pth:model: ", "No such file")
    write("ema_only.pth", averaged(B))
    loads("AveragedModel", "ema_only.pth", B, silent=["n_averaged", "not used"])
    write("plain_counter.pth", {**COUNTER, **A})
    loads("a counter among the names", "plain_counter.pth", A)
    write("timm.pth", {"epoch": 9, "arch": "resnet18", "state_dict": A, "version": 2, "state_dict_ema": B, "metric": 0.5})
    loads("timm", "timm.pth", A, '"state_dict" is used', '"timm.pth:state_dict_ema" (moving averages)')
    loads("timm --use-ema", "timm.pth:state_dict_ema", B)
    os.mkdir("a:b")
    write("a:b/c:d.pth", {"model": A, "ema": B})
    loads("colons in names of files", "a:b/c:d.pth", A)
    loads("colons in names of files, and an entry", "a:b/c:d.pth:ema", B)


def prefixes():
    for prefix in "module.", "model.", "net.", "encoder.", "backbone.", "student.", "module.model.", "_orig_mod.", "a.layer1.0.":
        for path in "p.pth", "p.safetensors":
            write(path, under(prefix, A))
            loads(f"{prefix} in {path}", path, A, silent=["does not", "also has"])
    for path in "lightning.pth", "lightning.safetensors":
        tensors = {**under("model.", A), **LOSS}
        write(path, {"state_dict": tensors, "epoch": 1} if path.endswith("pth") else tensors)
        loads(path, path, A, 'begin with "model."', '"criterion.weight"')
    write("detector.safetensors", {**under("backbone.body.", A), **DETECTOR})
    loads("a detector", "detector.safetensors", A, '"backbone.body."', "roi_heads")
    write("two.pth", {**under("encoder_q.", A), **under("encoder_k.", B)})
    refused("two prefixes", "two.pth", '"encoder_q"', '"encoder_k"', "two.pth:encoder_")
    loads("one of two prefixes", "two.pth:encoder_k", B)
    write("two.safetensors", {**under("m.encoder_q.", A), **under("m.encoder_k.", B)})
    refused("two prefixes in one", "two.safetensors:m", '"m.encoder_q"', "two.safetensors:m.encoder_")
    loads("one of two prefixes in one", "two.safetensors:m.encoder_q", A)
    write("plain.safetensors", {**A, **under("ema.", B)})
    refused("names without a prefix are those of the network", "plain.safetensors", '"ema.', "not in the network")
    write("sizes.safetensors", {**under("student.", A), **under("teacher.", WIDE)})
    loads("two networks of other sizes: the small one", "sizes.safetensors", A, '"student."')
    loads("two networks of other sizes: the wide one", "sizes.safetensors", WIDE, '"teacher."', config="wide.ini")


def entries():
    write("dino.pth", {"student": under("module.", A), "teacher": under("module.", B), "epoch": 1})
    refused("two networks", "dino.pth", "several networks", '"dino.pth:student"', '"dino.pth:teacher"')
    loads("one of two networks", "dino.pth:teacher", B)
    write("ours.pth", {"ours": A, "epoch": 1})
    loads("one network of another name", "ours.pth", A)
    write("rng.pth", {"rng_state": ("U8", (4,), b"abcd"), "model": A})
    loads("a tensor next to the networks", "rng.pth", A)
    write("loss.pth", {"criterion": {"weight": LOSS["criterion.weight"]}, "model": A})
    loads("a tensor in another entry", "loss.pth", A, silent=["also has"])


def misfits():
    wrong = {("module.other." + n if n.startswith("layer1.0.conv") else "module." + n): v for n, v in A.items()}
    write("wrong.pth", wrong)
    refused("other names", "wrong.pth", 'the prefix "module."', '"layer1.0.conv1.weight" [4, 4, 3, 3] is missing',
            '"other.layer1.0.conv1.weight" [4, 4, 3, 3] is in the file')
    refused("other shapes", "ema_only.pth", '"conv1.weight" has shape [4, 3, 3, 3] in the file, [8, 3, 3, 3] here', '"module."', config="wide.ini")
    write("vgg.pth", {f"features.{i}.weight": ("F32", (4,), bytes(16)) for i in range(9)})
    refused("another network", "vgg.pth", '"features.0.weight" [4] is in the file', '"conv1.weight" [4, 3, 3, 3] is missing', "4 more in the file")
    write("few.pth", {**under("stem.", {"bn1.weight": A["bn1.weight"]}), **under("blocks.", {f"{i}.norm": A["bn1.bias"] for i in range(9)})})
    refused("a few equal names are no network", "few.pth", '"stem.bn1.weight"')


def other_commands():
    ends("train: AveragedModel has a classifier", 0, "weights: ema_only.pth\n", "train", "net.ini", "model.weights=ema_only.pth", "--steps", "1", "-o", "T1")
    ends("train: the classifier is replaced", 0, "ckpt.pth:model_ema, classifier of 2 classes replaced", "train", "three.ini", "model.weights=ckpt.pth:model_ema", "--steps", "1", "-o", "T2")
    write("body.pth", averaged({n: v for n, v in A.items() if not n.startswith("fc.")}))
    ends("train: no classifier", 0, "which has no classifier: new classifier of 2 classes", "train", "net.ini", "model.weights=body.pth", "--steps", "1", "-o", "T3")
    ends("train: no such entry", 1, 'no entry "emu"', "train", "net.ini", "model.weights=ckpt.pth:emu", "--steps", "1", "-o", "T4")
    losses = {}
    for name, tensors in (("A", A), ("B", B)):
        write(f"{name}.safetensors", tensors)
        losses[name] = json.loads(cresnet("eval", "net.ini", "--weights", f"{name}.safetensors", "--json").stdout)["loss"]
    check("eval: the networks differ", losses["A"] != losses["B"], losses)
    os.rename("net.ini", "config.ini")  # in the folder of the weights it is found by the file alone
    for given, want in (("ckpt.pth", "A"), ("ckpt.pth:model_ema", "B"), ("ema_only.pth", "B"), ("lightning.pth", "A")):
        ran = cresnet("eval", given, "--json")
        check(f"eval {given}", ran.returncode == 0 and json.loads(ran.stdout)["loss"] == losses[want], ran.stderr)
    logs = {}
    for key in "model", "model_ema":
        ends(f"distill {key}", 0, f"teacher ckpt.pth:{key}: ", "train", "config.ini", f"distill.teacher=ckpt.pth:{key}", "--steps", "2", "train.log_every=1", "-o", f"D-{key}")
        logs[key] = [json.loads(line).get("loss") for line in open(f"D-{key}/log.jsonl")]
    check("distill: the teachers differ", logs["model"] != logs["model_ema"], logs)
    for given, want in (("ckpt.pth", A), ("ckpt.pth:model_ema", averaged(B)), ("timm.pth:state_dict_ema", B)):
        ran = cresnet("export", given, "-o", "tensors.safetensors")
        check(f"export {given}", ran.returncode == 0 and same(weights_file.read("tensors.safetensors")[0], want), ran.stderr)
        check(f"export {given}: names the averages", ("also has" in ran.stderr) == (":" not in given), ran.stderr)


def same(got, want):
    return {n: (k, tuple(s), d) for n, (k, s, d) in got.items()} == {n: (k, tuple(s), d) for n, (k, s, d) in want.items()}


def script():
    def convert(*args):
        return subprocess.run([sys.executable, "-B", f"{ROOT}/scripts/pth_to_safetensors.py", "-f", *args, "s.safetensors"],
                              capture_output=True, text=True)

    for args, want, said in ((["ckpt.pth"], A, "--key chooses another one: model_ema (moving averages)"), (["--key", "model_ema", "ckpt.pth"], B, ""),
                             (["ema_only.pth"], B, ""), (["--key", "state_dict_ema", "timm.pth"], B, ""), (["--key", "teacher", "dino.pth"], B, ""),
                             (["ours.pth"], A, ""), (["rng.pth"], A, ""), (["--key", "encoder_k", "two.pth"], B, ""), (["--key", "model", "lightning.pth"], A, "")):
        ran = convert(*args)
        check(f"the script: {' '.join(args)}", ran.returncode == 0 and same(weights_file.read("s.safetensors")[0], want), ran.stderr)
        check(f"the script: {' '.join(args)}: messages", said in ran.stderr and bool(said) == bool(ran.stderr), ran.stderr)
        loads(f"the script: {' '.join(args)}: the program", "s.safetensors", want, config="config.ini")
    ran = convert("dino.pth")
    check("the script: two networks", ran.returncode == 1 and "student, teacher with --key" in ran.stderr, ran.stderr)
    ran = convert("lightning.pth")
    check("the script: Lightning", ran.returncode == 0, ran.stderr)
    loads("the script: Lightning: the program", "s.safetensors", A, '"criterion.weight"', config="config.ini")
    # Both serialisations, each protocol, strided and shared storages, parameters: all have the tensors of one file. A comment that looks like
    # the end of the archive misleads the module zipfile.
    demo, corpus = weights_file.read(TESTS + "/golden/safetensors/demo.safetensors")[0], TESTS + "/fuzz/corpus/fuzz_torch"
    good = [f"{corpus}/{name}" for name in sorted(os.listdir(corpus)) if name.startswith("good-") and "comment" not in name]
    for path in good:
        ran = convert(path)
        check(f"the script: {path}", ran.returncode == 0 and same(weights_file.read("s.safetensors")[0], demo), ran.stderr)
    os.remove("s.safetensors")
    for kind in "zip", "stream":
        with open(f"{corpus}/good-{kind}", "rb") as f:
            data = f.read()
        for part in 3, 2, 1:
            with open("cut.pth", "wb") as f:
                f.write(data[:len(data) * part // 4])
            ran = convert("cut.pth")
            check(f"the script: {part}/4 of a {kind}", ran.returncode == 1 and "damaged" in ran.stderr and ran.stderr.count("\n") == 1, ran.stderr)
    for path, said in ((f"{corpus}/bad-tensor-beyond", ""), ("net.txt", "no file that torch.save wrote"), ("nowhere.pth", "no such file")):
        ran = convert(path)
        check(f"the script refuses {path}", ran.returncode == 1 and said in ran.stderr and ran.stderr.count("\n") == 1, ran.stderr)
    check("the script: what is refused writes nothing", not os.path.exists("s.safetensors"))


def library():
    path, python = f"{os.path.dirname(BIN)}/libcresnet.so", peers.interpreter("numpy")
    if not os.path.exists(path) or not python or os.environ.get("CRESNET_SANITIZE"):
        skip("no library in this build, or no numpy")
        return
    png.write("image.png", 8, 8, lambda x, y: (30 * x, 30 * y, 9 * x * y % 256))
    code = """import cresnet, sys
lines = []
with cresnet.Model(sys.argv[1], device="cpu", log=lambda level, text: lines.append(text)) as model:
    print(float(model.classify_files(["image.png"], top=1).probabilities[0][0]), sum("moving averages" in line for line in lines))"""
    for given, want, said in (("ckpt.pth", "A", 1), ("ckpt.pth:model_ema", "B", 0), ("lightning.pth", "A", 0)):
        ran = cresnet("predict", "config.ini", "--weights", f"{want}.safetensors", "image.png", "--json")
        probability = json.loads(ran.stdout)["top"][0]["probability"]
        ran = subprocess.run([python, "-B", "-c", code, given], capture_output=True, text=True,
                             env={**os.environ, "CRESNET_LIBRARY": path, "PYTHONPATH": f"{ROOT}/python"})
        value, lines = (ran.stdout.split() + ["nan", "0"])[:2]
        check(f"the library: {given}", abs(float(value) - probability) < 1e-5 and int(lines) == said, (ran.stdout, probability, ran.stderr))


def main():
    for name, width, classes in (("net", 4, 2), ("wide", 8, 2), ("three", 4, 3)):
        with open(f"{name}.ini", "w") as f:
            f.write(CONFIG % (width, classes))
    with open("net.txt", "w") as f:
        f.write("no tensors here")
    for part in averages, prefixes, entries, misfits, other_commands, script, library:
        part()


if __name__ == "__main__":
    run(main)
