#!/usr/bin/env python3
"""test_image_channels.py: runs on grey, RGBA, 16-bit and rectangular images: training, resuming bitwise identically, evaluation, prediction, the map
of explain, the report, the exported network and its input, weights of an RGB network, and messages."""
import json
import os
import subprocess
import sys

from support import ROOT, TINY_MODEL, check, cresnet, ends, good, run, skip
import peers
import png

np = None
if peers.with_modules(os.path.abspath(__file__), "numpy"):
    import numpy as np
    import st

KINDS = {"grey": (1, 16), "rgba": (4, 8)}


def weights(folder):
    with open(f"{folder}/last/model.safetensors", "rb") as f:
        return f.read()


def draw(root, channels, bits):
    """Two classes that differ in the last channel, and for 16 bits in the low bytes alone."""
    for split, count in (("train", 12), ("val", 4)):
        for k, name in enumerate("ab"):
            os.makedirs(f"{root}/{split}/{name}", exist_ok=True)
            for i in range(count):
                def pixel(x, y):
                    noise = (x * 31 + y * 17 + i * 7 + k * 13) % 40
                    if bits == 16:
                        return tuple(30000 + noise for _ in range(channels - 1)) + (30000 + k * 200 + noise,)
                    return tuple(100 + noise for _ in range(channels - 1)) + (60 + 120 * k + noise,)
                png.write(f"{root}/{split}/{name}/{i}.png", 12, 10, pixel, bits)


def exported_shape(file):
    """The dimensions of the network's input: batch, channels, height, width."""
    text = subprocess.run([sys.executable, f"{ROOT}/tests/tools/onnx_text.py", file], capture_output=True, text=True).stdout
    dims = [line.split()[1] for line in text.splitlines() if line.split()[:1] in (["dim_param"], ["dim_value"])]
    return dims[:4]


def train_and_resume(name):
    good(f"{name}: train", "train", f"{name}.ini", "-o", name)
    first = cresnet("train", f"{name}.ini", "-o", f"{name}-parts", "-q", "--steps", "5")
    rest = cresnet("train", f"{name}.ini", "-o", f"{name}-parts", "-q", "--resume", "auto", "train.steps=0", "data.workers=3")
    check(f"{name}: resume", first.returncode == 0 and rest.returncode == 0 and weights(name) == weights(f"{name}-parts"), rest.stderr)


def one_kind(name, channels, bits):
    draw(f"set-{name}", channels, bits)
    scale = "mean = 0.46\nstd = 0.002\n" if bits == 16 else ""
    with open(f"{name}.ini", "w") as f:
        f.write(TINY_MODEL + f"[data]\nkind = folder\nroot = set-{name}\nimage_size = 8\nchannels = {channels}\nbits = {bits}\n{scale}"
                "scale = 0.5,1\nmixup = 0.1\nerase = 0.1\n[train]\nbatch = 8\nepochs = 8\ndevice = cpu\nthreads = 1\n[optim]\nlr = 0.1\n")
    train_and_resume(name)
    found = json.loads(cresnet("eval", name, "--json", "-q").stdout or "{}")
    check(f"{name}: eval", found.get("images") == 8 and found.get("top1", 0) > 0.9, found)
    ran = cresnet("predict", name, f"set-{name}/val/b/0.png", "--json", "-q")
    check(f"{name}: predict", ran.returncode == 0 and json.loads(ran.stdout)["top"][0]["class"] == "b", ran)
    ran = cresnet("explain", name, f"set-{name}/val/b/0.png", "-o", f"{name}.png", "-q")
    check(f"{name}: explain", ran.returncode == 0 and open(f"{name}.png", "rb").read(4) == b"\x89PNG", ran)
    ends(f"{name}: report", 0, [], "report", name, "-q", "-o", f"{name}.html")
    ran = cresnet("export", name, "-o", f"{name}.onnx", "-q")
    check(f"{name}: export", ran.returncode == 0 and exported_shape(f"{name}.onnx") == ['"batch"', str(channels), "8", "8"], ran)


def rectangles():
    with open("wide.ini", "w") as f:
        f.write(TINY_MODEL + "[data]\nkind = shapes\nimage_size = 24x40\ntrain_images = 60\nval_images = 20\naugment = rand\nmixup = 0.2\ncutmix = 1\n"
                "erase = 0.3\nrepeats = 3\n[train]\nbatch = 10\nepochs = 2\ndevice = cpu\n[optim]\nlr = 0.05\n")
    train_and_resume("wide")
    stored = open("wide/last/config.ini").read()
    check("wide: stored keys", "\nimage_size = 24\n" in stored and "\nimage_width = 40\n" in stored, stored)
    found = json.loads(cresnet("eval", "wide", "--json", "-q").stdout or "{}")
    check("wide: eval", found.get("images") == 20, found)
    check("wide: data", "network input 24x40 px" in cresnet("data", "wide.ini").stdout)
    ran = cresnet("export", "wide", "-o", "wide.onnx", "-q")
    check("wide: export", ran.returncode == 0 and exported_shape("wide.onnx") == ['"batch"', "3", "24", "40"], ran)
    for factor in 1, 2:
        png.write(f"{factor}.png", 40 * factor, 24 * factor, lambda x, y: (x // factor * 5 % 256, y // factor * 9 % 256, x * y % 256))
        ran = cresnet("predict", "wide", f"{factor}.png", "--json", "-q")
        check(f"wide: predict, {factor} times the size", ran.returncode == 0 and len(json.loads(ran.stdout)["top"]) == 5, ran)
    for args, said in ((("train", "wide.ini", "data.eval_crop=24"), "must be 0 with image_width"), (("train", "wide.ini", "data.image_size=24x"), "image_size = 24x"),
                       (("finetune", "set-grey", "--weights", "none", "data.image_size=24x40"), "finetune chooses square images")):
        ends(f"wide: {args}", 2, said, *args, "-o", "x")


def adapted_weights():
    """One step with learning rate 0 keeps the loaded weights: the first filter is that of timm's adapt_input_conv."""
    if not np:
        return skip("no numpy")
    draw("set-rgb", 3, 8)
    one = ["data.kind=folder", "train.epochs=1", "train.batch=8", "data.image_size=8", "optim.lr=0", "optim.weight_decay=0", "-q", "train.device=cpu"]
    with open("plain.ini", "w") as f:
        f.write(TINY_MODEL)
    good("rgb", "train", "plain.ini", "data.root=set-rgb", "-o", "rgb", *one)
    rgb = st.load("rgb/last/model.safetensors")
    rgb = (rgb[0] if isinstance(rgb, tuple) else rgb)["conv1.weight"]
    for name, want in (("grey", rgb.sum(axis=1, keepdims=True)), ("rgba", np.concatenate([rgb, rgb[:, :1]], axis=1) * np.float32(0.75))):
        ran = cresnet("train", "plain.ini", f"data.root=set-{name}", f"data.channels={KINDS[name][0]}", "model.weights=rgb", "-o", f"from-{name}", *one)
        got = st.load(f"from-{name}/last/model.safetensors")
        got = (got[0] if isinstance(got, tuple) else got)["conv1.weight"]
        check(f"{name} from RGB weights", ran.returncode == 0 and got.shape == want.shape and np.abs(got - want).max() < 1e-7, ran)


def fine_tuned():
    """The format and the normalisation of the images come from the run whose weights are used; no key is set by hand."""
    ran = cresnet("finetune", "set-rgba", "--weights", "rgba", "-o", "tuned", "train.epochs=1", "train.device=cpu", "train.threads=1", "data.workers=0")
    dump = open("tuned.ini").read() if ran.returncode == 0 else ""
    check("finetune", "channels = 4\n" in dump and "mean = 0.485,0.456,0.406,0.449\n" in dump.replace(", ", ","), (ran, dump))


def main():
    for name, (channels, bits) in KINDS.items():
        one_kind(name, channels, bits)
    rectangles()
    fine_tuned()
    adapted_weights()
    ran = cresnet("data", "stat", "grey.ini", "--json")
    check("data stat", ran.returncode == 0 and len(json.loads(ran.stdout)["train"]["mean"]) == 1, ran)
    ran = cresnet("train", "rgba.ini", "data.augment=rand", "-o", "x")
    check("message", ran.returncode == 2 and "is not defined for channels = 4" in ran.stderr, ran)
    ends("other channels on resume", 2, "data.channels", "train", "grey.ini", "data.channels=3", "--resume", "auto", "-o", "grey")
    ran = cresnet("eval", "grey", "data.channels=3", "-q")
    check("other channels in eval", ran.returncode != 0 and "conv1.weight" in ran.stderr, ran)


run(main)
