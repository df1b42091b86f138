#!/usr/bin/env python3
"""Writes golden training runs of test_golden_train.c with PyTorch in float64: networks of all blocks, stems and shortcuts, and images of other
formats and sizes. golden.py says what is written.

    python3 tests/golden/train/make.py [NAME ...]        (Debian 12: python3-torch 1.13.1, python3-numpy; timm 1.0)

basic-a, basic-b, bottleneck and accumulate draw their weights one after the other: without names, or with all four.
"""
import torch
from torch import nn

from golden import SIZE, basic_b, batch, blocks, cross_entropy, draw_norms, run, sgd


def downsample(cin, cout, stride, first):
    """As torchvision and timm make shortcuts, before the block."""
    return blocks.shortcut_b(cin, cout, stride) if first or stride != 1 else None


def grouped(depths, widths):
    """Blocks of torchvision's ResNet with groups."""
    from torchvision.models.resnet import Bottleneck

    def block(cin, width, stride):
        return Bottleneck(cin, width, stride, downsample(cin, 4 * width, stride, cin != 4 * width), 2, 64)

    return blocks.Net("imagenet", block, depths, widths, expansion=4)


def attended(depths, widths):
    """Blocks of torchvision with timm's ECA at the end of each branch: names and code of timm's ResNet."""
    from timm.layers import EcaModule
    from torchvision.models.resnet import Bottleneck

    def block(cin, width, stride):
        return Bottleneck(cin, width, stride, downsample(cin, 4 * width, stride, cin != 4 * width))

    model = blocks.Net("imagenet", block, depths, widths, expansion=4)
    for b in [b for b in model.modules() if hasattr(b, "conv3")]:
        b.se = EcaModule(b.conv3.out_channels)
        b.forward = lambda x, b=b: b.relu(b.se(b.bn3(b.conv3(b.relu(b.bn2(b.conv2(b.relu(b.bn1(b.conv1(x)))))))))
                                          + (b.downsample(x) if b.downsample else x))
    return model


def blurred(block_name, stem, depths, widths):
    """Blocks of timm with aa_layer = BlurPool2d, and timm's max pooling before them (stem of ImageNet)."""
    from timm.layers import BlurPool2d
    from timm.models import resnet
    kind = getattr(resnet, block_name)

    def block(cin, width, stride):
        cout = kind.expansion * width
        return kind(cin, width, stride, downsample(cin, cout, stride, cin != cout), aa_layer=BlurPool2d)

    pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), BlurPool2d(widths[0], stride=2))
    return blocks.Net(stem, block, depths, widths, expansion=kind.expansion, pool=pool)


def fresh(name, model, optimizer, smoothing=0.0, **more):
    """A run with weights of its own, and BN parameters drawn by the length of its name."""
    torch.manual_seed(len(name))
    draw_norms(model)
    run(name, model, optimizer, cross_entropy(smoothing), **more)


def images(name, channels, bits, size_of, start=None):
    torch.manual_seed(len(name))
    model = basic_b()
    model.conv1 = nn.Conv2d(channels, 6, 3, 1, 1, bias=False)
    run(name, model, sgd(), cross_entropy(), start, lambda step: batch(step, size_of(step), channels, bits))


if __name__ == "__main__":
    torch.manual_seed(0)
    fresh("basic-a", blocks.basic((1, 1, 1), (4, 8, 16), blocks.shortcut_a), sgd())
    fresh("basic-b", basic_b(), sgd(nesterov=False, decay_all=True), 0.1)
    fresh("bottleneck", blocks.bottleneck((1, 2), (4, 6), blocks.shortcut_b), sgd(), 0.1, clip=0.5)
    fresh("accumulate", blocks.basic((1, 1), (5, 7), blocks.shortcut_b), sgd(), accumulate=3)
    nets = {"excited": lambda: blocks.bottleneck((1, 2), (4, 6), blocks.shortcut_d, "deep", excitation=True),
            "blurred": lambda: blurred("Bottleneck", "imagenet", (1, 2), (4, 6)),
            "blurred-basic": lambda: blurred("BasicBlock", "cifar", (1, 1), (5, 7)),
            "attended": lambda: attended((1, 2), (4, 6)),
            "grouped": lambda: grouped((1, 2), (4, 6))}
    for name, net in nets.items():
        torch.manual_seed(11)
        fresh(name, net(), sgd(), 0.1)
    images("grey", 1, 8, lambda step: SIZE)
    images("deep-alpha", 4, 16, lambda step: SIZE)
    images("resized", 3, 8, lambda step: SIZE if step < 5 else 24, "basic-b")
