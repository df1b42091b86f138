#!/usr/bin/env python3
"""PyTorch's side of the CPU comparison: training steps of CIFAR ResNet-20 (option A shortcuts, He et al. 2015).

The step is the one that cresnet measures: random images as f32, forward, cross-entropy, backward, SGD with Nesterov
momentum 0.9 and weight decay 1e-4. Each execution mode is measured and the fastest counts: contiguous and channels_last
tensors, eager and, where a compiler is usable, torch.compile.
Prints one JSON line: images_per_s and ms of the fastest mode, and the ms of each mode.

  python3 scripts/bench_cpu_peer.py [--batch 128] [--steps 20] [--warmup 5] [--threads 2] [--compile auto|no]
"""
import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.stride, self.pad = stride, (c_out - c_in) // 2

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.pad or self.stride != 1:
            x = F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(y + x)


class ResNet20(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        layers, c_in = [], 16
        for stage, width in enumerate((16, 32, 64)):
            for i in range(3):
                layers.append(Block(c_in, width, 2 if stage and not i else 1))
                c_in = width
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def time_mode(args, channels_last, compiled):
    torch.manual_seed(1)
    model = ResNet20()
    x, labels = torch.randn(args.batch, 3, 32, 32), torch.randint(0, 10, (args.batch,))
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, nesterov=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(run(x), labels).backward()
        optimizer.step()

    for _ in range(args.warmup):
        step()
    seconds = []
    for _ in range(args.steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", choices=("auto", "no"), default="auto")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    modes = [(last, False) for last in (False, True)]
    if args.compile == "auto" and hasattr(torch, "compile"):
        modes += [(last, True) for last in (False, True)]
    seconds = {}
    for last, compiled in modes:
        name = ("channels_last" if last else "contiguous") + (" compiled" if compiled else " eager")
        try:
            seconds[name] = time_mode(args, last, compiled)
        except Exception as error:  # torch.compile needs a C++ compiler and headers
            if not compiled:
                raise
            print(f"{name}: cannot run: {str(error).splitlines()[0]}", file=sys.stderr)
    best = min(seconds, key=seconds.get)
    print(json.dumps({"images_per_s": round(args.batch / seconds[best], 1), "ms": round(1e3 * seconds[best], 2), "mode": best,
                      "batch": args.batch, "threads": args.threads, "steps": args.steps, "torch": torch.__version__,
                      "modes_ms": {name: round(1e3 * s, 2) for name, s in seconds.items()}}))


if __name__ == "__main__":
    main()
