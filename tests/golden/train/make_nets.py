#!/usr/bin/env python3
"""Writes golden training runs, in float64, like make.py: of a network with ResNet-D's stem and shortcuts and squeeze-and-excitation, with
timm's names, and of networks of torchvision's and timm's blocks.

    python3 tests/golden/train/make_nets.py [NAME ...]        (Debian 12: python3-torch 1.13.1, python3-numpy)
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from make import CLASSES, run


class Excitation(nn.Module):
    """timm's SEModule: 1/16 of the channels, rounded to a multiple of 8."""

    def __init__(self, channels):
        super().__init__()
        inner = max(8, (channels // 16 + 4) // 8 * 8)
        self.fc1 = nn.Conv2d(channels, inner, 1)
        self.fc2 = nn.Conv2d(inner, channels, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.fc2(F.relu(self.fc1(x.mean((2, 3), keepdim=True)))))


def shortcut_d(cin, cout, stride):
    pool = nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False) if stride == 2 else nn.Identity()
    return nn.Sequential(pool, nn.Conv2d(cin, cout, 1, bias=False), nn.BatchNorm2d(cout))


class Bottleneck(nn.Module):
    def __init__(self, cin, width, stride):
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(cin, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.se = Excitation(out)
        self.downsample = shortcut_d(cin, out, stride) if stride != 1 or cin != out else None

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.se(self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y))))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Grouped(nn.Module):
    """Blocks of torchvision's ResNet with groups."""

    def __init__(self, depths, widths, groups, width_per_group):
        super().__init__()
        from torchvision.models.resnet import Bottleneck
        self.conv1 = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        cin, self.stages = widths[0], len(depths)
        for s, (depth, width) in enumerate(zip(depths, widths)):
            layers = []
            for b in range(depth):
                stride, cout = 2 if s and not b else 1, 4 * width
                down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)) if not b else None
                layers.append(Bottleneck(cin, width, stride, down, groups, width_per_group))
                cin = cout
            setattr(self, f"layer{s + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(cin, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for s in range(self.stages):
            x = getattr(self, f"layer{s + 1}")(x)
        return self.fc(x.mean((2, 3)))


class Attended(Grouped):
    """The same with timm's ECA at the end of each branch: names and code of timm's ResNet."""

    def __init__(self, depths, widths):
        super().__init__(depths, widths, 1, 64)
        from timm.layers import EcaModule
        for name, block in self.named_modules():
            if hasattr(block, "conv3"):
                block.se = EcaModule(block.conv3.out_channels)
                block.forward = lambda x, b=block: b.relu(b.se(b.bn3(b.conv3(b.relu(b.bn2(b.conv2(b.relu(b.bn1(b.conv1(x)))))))))
                                                         + (b.downsample(x) if b.downsample else x))


class Blurred(nn.Module):
    """Blocks of timm with aa_layer = BlurPool2d, and timm's max pooling before them (stem of ImageNet)."""

    def __init__(self, block, depths, widths):
        super().__init__()
        from timm.layers import BlurPool2d
        from timm.models import resnet
        block = getattr(resnet, block)
        large = block is resnet.Bottleneck
        self.conv1 = nn.Conv2d(3, widths[0], 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.maxpool = nn.Sequential(nn.MaxPool2d(3, 1, 1), BlurPool2d(widths[0], stride=2)) if large else nn.Identity()
        cin, self.stages = widths[0], len(depths)
        for s, (depth, width) in enumerate(zip(depths, widths)):
            layers = []
            for b in range(depth):
                stride, cout = 2 if s and not b else 1, block.expansion * width
                down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)) if stride != 1 or cin != cout else None
                layers.append(block(cin, width, stride, down, aa_layer=BlurPool2d))
                cin = cout
            setattr(self, f"layer{s + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(cin, CLASSES)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        for s in range(self.stages):
            x = getattr(self, f"layer{s + 1}")(x)
        return self.fc(x.mean((2, 3)))


class Net(nn.Module):
    def __init__(self, depths, widths):
        super().__init__()
        half = widths[0] // 2
        self.conv1 = nn.Sequential(nn.Conv2d(3, half, 3, 2, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(),
                                   nn.Conv2d(half, half, 3, 1, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(),
                                   nn.Conv2d(half, widths[0], 3, 1, 1, bias=False))
        self.bn1 = nn.BatchNorm2d(widths[0])
        cin, self.stages = widths[0], len(depths)
        for s, (depth, width) in enumerate(zip(depths, widths)):
            layers = []
            for b in range(depth):
                layers.append(Bottleneck(cin, width, 2 if s and not b else 1))
                cin = 4 * width
            setattr(self, f"layer{s + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(cin, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for s in range(self.stages):
            x = getattr(self, f"layer{s + 1}")(x)
        return self.fc(x.mean((2, 3)))


if __name__ == "__main__":
    nets = {"excited": lambda: Net((1, 2), (4, 6)),
            "blurred": lambda: Blurred("Bottleneck", (1, 2), (4, 6)),
            "blurred-basic": lambda: Blurred("BasicBlock", (1, 1), (5, 7)),
            "attended": lambda: Attended((1, 2), (4, 6)),
            "grouped": lambda: Grouped((1, 2), (4, 6), 2, 64)}
    for name in sys.argv[1:] or nets:
        torch.manual_seed(11)
        run(name, nets[name](), True, False, 0.1, 0.0, 1)
