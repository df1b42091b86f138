"""torch_blocks.py: the networks of a [model] section in PyTorch, for golden data and comparisons: blocks with the shortcuts A and B, and a network
of any blocks, with the names of torchvision. Blocks of torchvision and timm themselves fit, too. Needs torch."""
import torch
import torch.nn.functional as F
from torch import nn


class ShortcutA(nn.Module):
    """Subsamples by two and pads channels with zeros on both sides (He et al., option A)."""

    def __init__(self, grow, stride):
        super().__init__()
        self.grow, self.stride = grow, stride

    def forward(self, x):
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.grow // 2, self.grow // 2))


def shortcut_a(cin, cout, stride):
    return ShortcutA(cout - cin, stride)


def shortcut_b(cin, cout, stride):
    return nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))


def shortcut_d(cin, cout, stride):
    """ResNet-D: average pooling before the convolution."""
    pool = nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False) if stride == 2 else nn.Identity()
    return nn.Sequential(pool, nn.Conv2d(cin, cout, 1, bias=False), nn.BatchNorm2d(cout))


class Excitation(nn.Module):
    """timm's SEModule: 1/16 of the channels, rounded to a multiple of 8."""

    def __init__(self, channels):
        super().__init__()
        inner = max(8, (channels // 16 + 4) // 8 * 8)
        self.fc1 = nn.Conv2d(channels, inner, 1)
        self.fc2 = nn.Conv2d(inner, channels, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.fc2(torch.relu(self.fc1(x.mean((2, 3), keepdim=True)))))


class Basic(nn.Module):
    expansion = 1

    def __init__(self, cin, width, stride, shortcut):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(cin, width, stride) if stride != 1 or cin != width else nn.Identity()

    def branch(self, x):
        return self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))

    def forward(self, x):
        return F.relu(self.branch(x) + self.downsample(x))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, cin, width, stride, shortcut, excitation=False):
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(cin, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.se = Excitation(out) if excitation else nn.Identity()
        self.downsample = shortcut(cin, out, stride) if stride != 1 or cin != out else nn.Identity()

    def forward(self, x):
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.se(self.bn3(self.conv3(y))) + self.downsample(x))


def deep_stem(width):
    """ResNet-D: three 3x3 convolutions; the batch norm of the last one is the network's bn1."""
    half = width // 2
    return nn.Sequential(nn.Conv2d(3, half, 3, 2, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(),
                         nn.Conv2d(half, half, 3, 1, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(),
                         nn.Conv2d(half, width, 3, 1, 1, bias=False))


class Net(nn.Module):
    """stem: cifar, imagenet or deep. block(cin, width, stride) makes a block, whose output has `expansion` times `width` channels. pool replaces
    the max pooling of the stems of ImageNet."""

    def __init__(self, stem, block, depths, widths, classes=10, expansion=1, channels=3, pool=None):
        super().__init__()
        cin, self.stages = widths[0], len(depths)
        if stem == "deep":
            self.conv1 = deep_stem(cin)
        else:
            self.conv1 = nn.Conv2d(channels, cin, 7, 2, 3, bias=False) if stem == "imagenet" else nn.Conv2d(channels, cin, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cin)
        self.maxpool = nn.Identity() if stem == "cifar" else pool or nn.MaxPool2d(3, 2, 1)
        for s, (depth, width) in enumerate(zip(depths, widths)):
            blocks = []
            for b in range(depth):
                blocks.append(block(cin, width, 2 if s and not b else 1))
                cin = expansion * width
            setattr(self, f"layer{s + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(cin, classes)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        for s in range(self.stages):
            x = getattr(self, f"layer{s + 1}")(x)
        return self.fc(x.mean((2, 3)))


def basic(depths, widths, shortcut, **more):
    """A network of basic blocks with the stem for CIFAR."""
    return Net("cifar", lambda *args: Basic(*args, shortcut), depths, widths, **more)


def bottleneck(depths, widths, shortcut, stem="imagenet", excitation=False, **more):
    return Net(stem, lambda *args: Bottleneck(*args, shortcut, excitation), depths, widths, expansion=4, **more)
