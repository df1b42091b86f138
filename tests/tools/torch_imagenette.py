#!/usr/bin/env python3
"""torch_imagenette.py: PyTorch trains a network for Imagenette with the recipe that configs/imagenette-128-5.ini had with LAMB, for a comparison
of the top-1 of both programs (docs/internals/experiments.md). Prints a line for each seed and the mean.

  torch_imagenette.py --photos DIR [--epochs 5] [--seeds 1 2 3]

The network: two basic blocks a stage, widths 128 to 1,024, the stem of three 3x3 convolutions and the shortcuts of ResNet-D, BN momentum 0.02,
gamma of the last BN of a block 0. The recipe: LAMB as in timm without clipping (0.005, beta 0.95 and 0.99, epsilon 1e-6, decay 0.02 of weights
only), one cycle of the learning rate and of beta1, batches of 16, label smoothing 0.1, crops of 40 to 100 % of the area, flips, 64 px from epoch
0, 96 px from epoch 1, 128 px from epoch 3, fp16. Evaluation: short side 160, centre 128. DIR has train/CLASS and val/CLASS; all photos are squares of
the same size. Needs torch, torchvision, PIL, numpy and a GPU."""
import argparse
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torchvision.ops import roi_align
from torchvision.transforms import functional as TF

BATCH, LR, DECAY, SMOOTHING, PEAK, DIV, FINAL_DIV = 16, 0.005, 0.02, 0.1, 0.25, 25, 100000
BETA1, LOW_BETA1, BETA2, EPS, SCALE = 0.95, 0.85, 0.99, 1e-6, (0.4, 1.0)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def norm(width):
    return nn.BatchNorm2d(width, momentum=0.02)


class Block(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(before, width, 3, stride, 1, bias=False), norm(width), nn.ReLU(),
                                  nn.Conv2d(width, width, 3, 1, 1, bias=False), norm(width))
        self.shortcut = nn.Identity()
        if stride != 1 or before != width:
            pool = nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False) if stride != 1 else nn.Identity()
            self.shortcut = nn.Sequential(pool, nn.Conv2d(before, width, 1, bias=False), norm(width))
        nn.init.zeros_(self.body[4].weight)

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


def network(classes):
    layers = [nn.Conv2d(3, 64, 3, 2, 1, bias=False), norm(64), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1, bias=False), norm(64), nn.ReLU(),
              nn.Conv2d(64, 128, 3, 1, 1, bias=False), norm(128), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 128
    for stage, width in enumerate((128, 256, 512, 1024)):
        for i in range(2):
            layers.append(Block(before, width, 2 if stage and not i else 1))
            before = width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, classes))
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
    return model.cuda().to(memory_format=torch.channels_last)


class Lamb:
    def __init__(self, params):
        self.params = list(params)
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]
        self.decay = [DECAY if p.dim() > 1 else 0.0 for p in self.params]
        self.steps = 0

    @torch.no_grad()
    def step(self, lr, beta1):
        self.steps += 1
        grads = [p.grad for p in self.params]
        torch._foreach_mul_(self.m, beta1)
        torch._foreach_add_(self.m, grads, alpha=1 - beta1)
        torch._foreach_mul_(self.v, BETA2)
        torch._foreach_addcmul_(self.v, grads, grads, 1 - BETA2)
        root = torch._foreach_sqrt(self.v)
        torch._foreach_div_(root, math.sqrt(1 - BETA2 ** self.steps))
        torch._foreach_add_(root, EPS)
        move = torch._foreach_div(self.m, root)
        torch._foreach_div_(move, 1 - beta1 ** self.steps)
        for p, d, decay in zip(self.params, move, self.decay):
            if decay:
                d.add_(p, alpha=decay)
        w, u = torch._foreach_norm(self.params), torch._foreach_norm(move)
        for p, d, decay, a, b in zip(self.params, move, self.decay, w, u):
            ratio = torch.where((a > 0) & (b > 0), a / b, torch.ones_like(a)) if decay else 1.0
            p.sub_(d * (ratio * lr))


def one_cycle(step, steps, low, high, end):
    last, peak = steps - 1, PEAK * steps - 1
    cosine = lambda a, b, t: b + (a - b) * 0.5 * (1 + math.cos(math.pi * t))
    return cosine(low, high, step / peak) if step <= peak else cosine(high, end, (step - peak) / (last - peak))


def read_split(folder):
    images, labels = [], []
    for label, name in enumerate(sorted(os.listdir(folder))):
        for file in sorted(os.listdir(os.path.join(folder, name))):
            images.append(np.asarray(Image.open(os.path.join(folder, name, file)).convert("RGB")))
            labels.append(label)
    return torch.from_numpy(np.stack(images)).cuda(), torch.tensor(labels).cuda()


def normalised(x):
    mean, std = (torch.tensor(v, device=x.device).view(1, 3, 1, 1) for v in (MEAN, STD))
    return ((x / 255 - mean) / std).contiguous(memory_format=torch.channels_last)


def crops(images, size):
    """Random crops as RandomResizedCrop's; roi_align averages the pixels below each output pixel. Half of them are mirrored."""
    n, side = images.shape[0], images.shape[1]
    boxes = np.zeros((n, 5), np.float32)
    for i in range(n):
        w = h = side
        for _ in range(10):
            area, aspect = side * side * np.random.uniform(*SCALE), math.exp(np.random.uniform(math.log(3 / 4), math.log(4 / 3)))
            a, b = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if a <= side and b <= side:
                w, h = a, b
                break
        x, y = np.random.randint(side - w + 1), np.random.randint(side - h + 1)
        boxes[i] = i, x, y, x + w, y + h
    x = roi_align(images.permute(0, 3, 1, 2).float(), torch.from_numpy(boxes).cuda(), (size, size), aligned=True)
    flip = torch.rand(n, 1, 1, 1, device="cuda") < 0.5
    return normalised(torch.where(flip, x.flip(3), x))


def train(data, val, epochs, seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    images, labels = data
    model, per_epoch, scale, step = network(int(labels.max()) + 1), len(labels) // BATCH, 1024.0, 0
    lamb = Lamb(model.parameters())
    for epoch in range(epochs):
        model.train()
        size = 64 if epoch < 1 else 96 if epoch < 3 else 128
        order = torch.randperm(len(labels), device="cuda")
        for i in range(per_epoch):
            at = order[i * BATCH:(i + 1) * BATCH]
            with torch.autocast("cuda", torch.float16):
                loss = F.cross_entropy(model(crops(images[at], size)), labels[at], label_smoothing=SMOOTHING)
            model.zero_grad(set_to_none=True)
            (loss * scale).backward()
            torch._foreach_div_([p.grad for p in model.parameters()], scale)
            lr = one_cycle(step, epochs * per_epoch, LR / DIV, LR, LR / DIV / FINAL_DIV)
            lamb.step(lr, one_cycle(step, epochs * per_epoch, BETA1, LOW_BETA1, BETA1))
            step += 1
    model.eval()
    right = 0
    with torch.no_grad(), torch.autocast("cuda", torch.float16):
        for i in range(0, len(val[1]), 100):
            x = TF.resize(val[0][i:i + 100].permute(0, 3, 1, 2).float(), [160, 160], antialias=True)
            x = normalised(TF.center_crop(x, [128, 128]))
            right += (model(x).argmax(1) == val[1][i:i + 100]).sum().item()
    return 100 * right / len(val[1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--photos", required=True)
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    a = p.parse_args()
    data, val = (read_split(os.path.join(a.photos, split)) for split in ("train", "val"))
    found = []
    for seed in a.seeds:
        begin = time.time()
        found.append(train(data, val, a.epochs, seed))
        print(f"PyTorch {torch.__version__}, seed {seed}: top-1 {found[-1]:.2f} %, {time.time() - begin:.1f} s", flush=True)
    print(f"mean {np.mean(found):.2f} %")


if __name__ == "__main__":
    main()
