#!/usr/bin/env python3
"""torch_photos.py: cresnet and PyTorch train ResNet-50 on the same folder of photos with the same recipe and several seeds; the training
loss of the last epoch and the validation top-1 must agree within the spread of the seeds.

  torch_photos.py --cresnet build/gpu/cresnet --photos DIR [--epochs 30] [--seeds 3] [--out result.json]

The recipe: unchanged images (224 px), flips, SGD with Nesterov momentum 0.9, weight decay 1e-4 on all parameters, label smoothing
0.1, batch size 64, learning rate 0.02 with 5 epochs of warm-up and a cosine schedule, fp16. Random numbers differ, so single runs
differ too, and with a thousand images they differ much: with a rate of 0.05 and 2 epochs single seeds of both programs ended between
0.8 and 1.6. The means must agree in Student's t-test at 1 % (and within 1 % of top-1, which is the resolution of 300 images). Needs
torch, torchvision, PIL, numpy and a GPU."""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BATCH, LR, DECAY, SMOOTHING, WARMUP = 64, 0.02, 1e-4, 0.1, 5
T_1_PERCENT = {2: 9.925, 4: 4.604, 6: 3.707, 8: 3.355, 10: 3.169}  # by degrees of freedom, two-sided; more: 3.1
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read_split(folder):
    classes = sorted(os.listdir(folder))
    images, labels = [], []
    for label, name in enumerate(classes):
        for file in sorted(os.listdir(os.path.join(folder, name))):
            images.append(np.asarray(Image.open(os.path.join(folder, name, file)).convert("RGB")))
            labels.append(label)
    return torch.from_numpy(np.stack(images)).cuda(), torch.tensor(labels).cuda(), len(classes)


def prepared(images):
    x = images.permute(0, 3, 1, 2).to(memory_format=torch.channels_last).float() / 255
    mean, std = (torch.tensor(v, device=x.device).view(1, 3, 1, 1) for v in (MEAN, STD))
    return (x - mean) / std


def rate(step, per_epoch, epochs):
    warm, total = WARMUP * per_epoch, epochs * per_epoch
    if step < warm:
        return LR * step / warm
    return LR * 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))


def train_torch(train, val, classes, epochs, seed):
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = True
    images, labels = train
    model = torchvision.models.resnet50(num_classes=classes).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), LR, 0.9, weight_decay=DECAY, nesterov=True)
    scaler = torch.amp.GradScaler()
    per_epoch, step, curve = len(labels) // BATCH, 0, []
    for epoch in range(epochs):
        model.train()
        order = torch.randperm(len(labels), device="cuda")
        losses = []
        for i in range(per_epoch):
            at = order[i * BATCH:(i + 1) * BATCH]
            x = prepared(images[at])
            x = torch.where((torch.rand(len(at), device="cuda") < 0.5).view(-1, 1, 1, 1), x.flip(3), x)
            for group in optimizer.param_groups:
                group["lr"] = rate(step, per_epoch, epochs)
            with torch.autocast("cuda", torch.float16):
                loss = F.cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), labels[at], label_smoothing=SMOOTHING)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            step += 1
            losses.append(loss.detach())
        curve.append(torch.stack(losses).mean().item())
    model.eval()
    right = 0
    with torch.no_grad(), torch.autocast("cuda", torch.float16):
        for i in range(0, len(val[1]), 100):
            right += (model(prepared(val[0][i:i + 100])).argmax(1) == val[1][i:i + 100]).sum().item()
    return curve, 100 * right / len(val[1])


def train_cresnet(a, classes, per_epoch, seed):
    with tempfile.TemporaryDirectory() as folder:
        values = {"model.classes": classes, "data.root": a.photos, "data.crop": "none", "data.eval_resize": 224, "data.eval_crop": 224,
                  "data.workers": len(os.sched_getaffinity(0)), "train.batch": BATCH, "train.eval_batch": 100, "train.epochs": a.epochs, "train.seed": seed,
                  "train.precision": "fp16", "train.label_smoothing": SMOOTHING, "train.eval_every": a.epochs, "train.log_every": per_epoch,
                  "optim.lr": LR, "optim.nesterov": "yes", "optim.weight_decay": DECAY, "optim.decay_norm_bias": "yes",
                  "schedule.kind": "cosine", "schedule.warmup_epochs": WARMUP}
        run = os.path.join(folder, "run")
        subprocess.run([a.cresnet, "train", os.path.join(SOURCE, "configs/resnet50.ini"), "-q", "-o", run] +
                       [f"{k}={v}" for k, v in values.items()] + a.set, check=True)
        with open(os.path.join(run, "log.jsonl")) as f:
            lines = [json.loads(line) for line in f]
    losses = [line["loss"] for line in lines if line["event"] == "train"]
    return losses, 100 * [line["top1"] for line in lines if line["event"] == "eval"][-1]


def compare(what, ours, theirs, floor):
    n = len(ours)
    difference = abs(np.mean(ours) - np.mean(theirs))
    error = math.sqrt((np.var(ours, ddof=1) + np.var(theirs, ddof=1)) / n)
    allowed = max(T_1_PERCENT.get(2 * n - 2, 3.1) * error, floor)
    good = difference <= allowed
    print(f"{what}: ours {np.mean(ours):.4f} ({', '.join(f'{v:.4f}' for v in ours)}), PyTorch {np.mean(theirs):.4f} "
          f"({', '.join(f'{v:.4f}' for v in theirs)}), difference {difference:.4f}, allowed {allowed:.4f}: {'PASS' if good else 'FAIL'}", flush=True)
    return good


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cresnet", required=True)
    p.add_argument("--photos", "--pictures", required=True)
    p.add_argument("--epochs", type=int, default=30)
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="more values for cresnet")
    p.add_argument("--only", choices=("ours", "theirs"), help="trains with one program only, compares nothing")
    p.add_argument("--out", help="JSON with the loss of each epoch and top-1 of each run")
    a = p.parse_args()
    *train, classes = read_split(os.path.join(a.photos, "train"))
    *val, _ = read_split(os.path.join(a.photos, "val"))
    per_epoch = len(train[1]) // BATCH
    seeds  = range(1, a.seeds + 1)
    ours   = [train_cresnet(a, classes, per_epoch, s) for s in seeds] if a.only != "theirs" else []
    theirs = [train_torch(train, val, classes, a.epochs, s) for s in seeds] if a.only != "ours" else []
    if a.out:
        with open(a.out, "w") as f:
            json.dump({"ours": ours, "theirs": theirs}, f)
    for name, runs in (("ours", ours), ("PyTorch", theirs)):
        for curve, top1 in runs:
            print(f"{name}: top-1 {top1:.2f} %, loss by epoch {' '.join(f'{v:.3f}' for v in curve)}", flush=True)
    if a.only:
        return
    good = compare("loss of the last epoch", [o[0][-1] for o in ours], [t[0][-1] for t in theirs], 0.005)
    good &= compare("validation top-1", [o[1] for o in ours], [t[1] for t in theirs], 1.0)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
