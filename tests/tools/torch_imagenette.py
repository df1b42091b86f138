#!/usr/bin/env python3
"""torch_imagenette.py: PyTorch trains the network of configs/imagenette-128-5.ini with the same recipe, for a comparison of the top-1 and the time
of both programs (docs/experiments/). Prints a line for each seed and the mean.

  torch_imagenette.py --photos DIR [--seeds 1 2 3]

The network: 2, 2, 4 and 2 basic blocks, widths 128 to 1,024, the stem of three 3x3 convolutions and the shortcuts of ResNet-D, BN momentum 0.02, gamma of
the last BN of a block 0. The recipe: torch.optim.Muon for the filters (momentum 0.95, Nesterov), AdamW for all other parameters (beta 0.95 and 0.99,
epsilon 1e-6), one cycle of the learning rate up to 0.006, decay 0.05 of weights only, 5 epochs of batches of 32, label smoothing 0.2, crops of 50 to
100 % of the area, flips (at random in the first epoch, then alternating), 96 px from epoch 0, 128 px from epoch 2, fp16. Evaluation: short side 160,
centre 128. DIR has train/CLASS and val/CLASS; all photos are squares of the same size. Needs PyTorch 2.9 or newer, torchvision, PIL, numpy and a GPU."""
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

EPOCHS, BATCH, LR, DECAY, SMOOTHING, PEAK, DIV, FINAL_DIV = 5, 32, 0.006, 0.05, 0.2, 0.55, 25, 100000
BETA1, BETA2, EPS, SCALE, DEPTHS = 0.95, 0.99, 1e-6, (0.5, 1.0), (2, 2, 4, 2)
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
        for i in range(DEPTHS[stage]):
            layers.append(Block(before, width, 2 if stage and not i else 1))
            before = width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, classes))
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_in", nonlinearity="relu")
    return model.cuda().to(memory_format=torch.channels_last)


class Muon:
    """Filters as matrices by Muon, all other parameters by AdamW. The matrices share the memory of the filters, which are channels-last; the order of
    their columns does not change the result."""

    def __init__(self, model):
        rows = lambda x: x.permute(0, 2, 3, 1).reshape(len(x), -1)
        self.rows, self.filters = rows, [p for p in model.parameters() if p.dim() == 4]
        self.matrices = [nn.Parameter(rows(p.data)) for p in self.filters]
        assert all(m.data_ptr() == p.data_ptr() for m, p in zip(self.matrices, self.filters))
        self.muon = torch.optim.Muon(self.matrices, lr=LR, weight_decay=DECAY, momentum=BETA1, adjust_lr_fn="match_rms_adamw")
        groups = [{"params": [p for p in model.parameters() if p.dim() == dims], "weight_decay": decay} for dims, decay in ((2, DECAY), (1, 0.0))]
        self.others = torch.optim.AdamW(groups, lr=LR, betas=(BETA1, BETA2), eps=EPS, fused=True)

    def step(self, lr):
        for matrix, p in zip(self.matrices, self.filters):
            matrix.grad = self.rows(p.grad)
        for optimizer in (self.muon, self.others):
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()


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


def crops(images, size, flip):
    """Random crops as RandomResizedCrop's; roi_align averages the pixels below each output pixel. Those with `flip` are mirrored."""
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
    return normalised(torch.where(flip.view(-1, 1, 1, 1), x.flip(3), x))


def train(data, val, seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    images, labels = data
    model, per_epoch, scale, step = network(int(labels.max()) + 1), len(labels) // BATCH, 1024.0, 0
    muon, flips = Muon(model), torch.rand(len(labels), device="cuda") < 0.5
    for epoch in range(EPOCHS):
        model.train()
        size = 96 if epoch < 2 else 128
        order = torch.randperm(len(labels), device="cuda")
        for i in range(per_epoch):
            at = order[i * BATCH:(i + 1) * BATCH]
            with torch.autocast("cuda", torch.float16):
                loss = F.cross_entropy(model(crops(images[at], size, flips[at] ^ (epoch % 2 == 1))), labels[at], label_smoothing=SMOOTHING)
            model.zero_grad(set_to_none=True)
            (loss * scale).backward()
            torch._foreach_div_([p.grad for p in model.parameters()], scale)
            muon.step(one_cycle(step, EPOCHS * per_epoch, LR / DIV, LR, LR / DIV / FINAL_DIV))
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
    p.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    a = p.parse_args()
    data, val = (read_split(os.path.join(a.photos, split)) for split in ("train", "val"))
    found = []
    for seed in a.seeds:
        begin = time.time()
        found.append(train(data, val, seed))
        print(f"PyTorch {torch.__version__}, seed {seed}: top-1 {found[-1]:.2f} %, {time.time() - begin:.1f} s", flush=True)
    print(f"mean {np.mean(found):.2f} %")


if __name__ == "__main__":
    main()
