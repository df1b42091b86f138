#!/usr/bin/env python3
"""test_rectangle_run.py: a run with rectangular images: training with all augmentations, resuming bitwise identically, evaluation, prediction of
images of the exact size against the exported network's input, and messages."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools"))
import png
from support import ROOT, TINY_MODEL, check, cresnet, run


def weights(folder):
    with open(f"{folder}/last/model.safetensors", "rb") as f:
        return f.read()


def main():
    with open("c.ini", "w") as f:
        f.write(TINY_MODEL + "[data]\nkind = shapes\nimage_size = 24x40\ntrain_images = 60\nval_images = 20\naugment = rand\nmixup = 0.2\ncutmix = 1\n"
                "erase = 0.3\nrepeats = 3\n[train]\nbatch = 10\nepochs = 2\ndevice = cpu\n[optim]\nlr = 0.05\n")
    whole = cresnet("train", "c.ini", "-o", "whole", "-q")
    check("train", whole.returncode == 0, whole.stderr)
    first = cresnet("train", "c.ini", "-o", "parts", "-q", "--steps", "4")
    rest = cresnet("train", "c.ini", "-o", "parts", "-q", "--resume", "auto", "train.steps=0", "data.workers=3")
    check("resume", first.returncode == 0 and rest.returncode == 0, first.stderr + rest.stderr)
    check("resuming changes nothing", weights("whole") == weights("parts"))
    stored = open("whole/last/config.ini").read()
    check("stored keys", "\nimage_size = 24\n" in stored and "\nimage_width = 40\n" in stored, stored)
    found = json.loads(cresnet("eval", "whole", "--json", "-q").stdout or "{}")
    check("eval", found.get("images") == 20, found)
    check("data", "network input 24x40 px" in cresnet("data", "c.ini").stdout)

    ran = cresnet("export", "whole", "-o", "net.onnx", "-q")
    text = subprocess.run([sys.executable, f"{ROOT}/tests/tools/onnx_text.py", "net.onnx"], capture_output=True, text=True).stdout
    dims = [line.split()[1] for line in text.splitlines() if line.split()[:1] in (["dim_param"], ["dim_value"])]
    check("export", ran.returncode == 0 and dims[:4] == ['"batch"', "3", "24", "40"], (ran, dims))
    png.write("exact.png", 40, 24, lambda x, y: ((x * 5) % 256, (y * 9) % 256, (x * y) % 256))
    png.write("double.png", 80, 48, lambda x, y: ((x // 2 * 5) % 256, (y // 2 * 9) % 256, (x // 2 * (y // 2)) % 256))
    ran = cresnet("predict", "whole", "exact.png", "--json", "-q")
    check("predict", ran.returncode == 0 and len(json.loads(ran.stdout)["top"]) == 5, ran)
    ran = cresnet("predict", "whole", "double.png", "--json", "-q")
    check("predict resizes", ran.returncode == 0, ran)
    ran = cresnet("train", "c.ini", "data.eval_crop=24", "-o", "x")
    check("eval_crop", ran.returncode == 2 and "must be 0 with image_width" in ran.stderr, ran)
    for name in "ab":
        for i in range(4):
            os.makedirs(f"set/{name}", exist_ok=True)
            png.write(f"set/{name}/{i}.png", 9, 9, lambda x, y: (x * i, y, 0))
    ran = cresnet("finetune", "set", "--weights", "none", "data.image_size=24x40", "-o", "f")
    check("finetune", ran.returncode == 2 and "finetune chooses square images" in ran.stderr, ran)
    ran = cresnet("train", "c.ini", "data.image_size=24x", "-o", "x")
    check("no width", ran.returncode == 2 and "image_size = 24x" in ran.stderr, ran)


run(main)
