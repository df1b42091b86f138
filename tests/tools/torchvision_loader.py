#!/usr/bin/env python3
"""The speed of torchvision's augmentation on one core, to compare with `cresnet bench data`:

    torchvision_loader.py DIR none|rand|trivial|auto [IMAGES]

Decodes the JPEG files below DIR with Pillow, applies RandomResizedCrop(224), a flip and the policy, and prints images per second of CPU
time of this process.
"""
import glob
import sys
import time

import torch
from PIL import Image
from torchvision import transforms as T

torch.set_num_threads(1)
torch.manual_seed(1)
policy = {"none": [], "rand": [T.RandAugment()], "trivial": [T.TrivialAugmentWide()], "auto": [T.AutoAugment()]}[sys.argv[2]]
prepare = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *policy, T.PILToTensor()])
paths = [p for p in sorted(glob.glob(sys.argv[1] + "/**/*", recursive=True)) if p.lower().endswith((".jpg", ".jpeg"))]
count = int(sys.argv[3]) if len(sys.argv) > 3 else 1000


def load(images):
    for i in range(images):
        with open(paths[i % len(paths)], "rb") as f:
            prepare(Image.open(f).convert("RGB"))


load(40)
start = time.process_time()
load(count)
print("%.1f images/s per core, %d files, policy %s" % (count / (time.process_time() - start), len(paths), sys.argv[2]))
