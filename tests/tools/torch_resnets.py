"""torch_resnets.py: networks of torchvision, and ResNet-D, SE-ResNet and ECA-ResNet written after timm's classes, with timm's names: timm
itself is compared with them where it is installed (loads_into_timm). Needs torch and torchvision."""
import contextlib
import math

import torch
import torchvision
from torch import nn
from torch_blocks import Excitation, deep_stem, shortcut_d
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet


class ChannelAttention(nn.Module):
    """timm's EcaModule: gamma 2, beta 1."""

    def __init__(self, channels):
        super().__init__()
        size = int(abs(math.log2(channels) + 1) / 2)
        size += 1 - size % 2
        self.conv = nn.Conv1d(1, 1, size, padding=size // 2, bias=False)

    def forward(self, x):
        return x * torch.sigmoid(self.conv(x.mean((2, 3))[:, None])[:, 0, :, None, None])


def attended(block, attention):
    """The block of torchvision with a module `se` before the sum."""
    last = "bn3" if block is Bottleneck else "bn2"

    class Attended(block):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            self.se = attention(getattr(self, last).num_features)

        def forward(self, x):
            y = self.relu(self.bn1(self.conv1(x)))
            y = self.bn2(self.conv2(y))
            if block is Bottleneck:
                y = self.bn3(self.conv3(self.relu(y)))
            return self.relu(self.se(y) + (x if self.downsample is None else self.downsample(x)))

    Attended.expansion = block.expansion
    return Attended


def with_d(model):
    """ResNet-D: a stem of three 3x3 convolutions; shortcuts with average pooling."""
    model.conv1 = deep_stem(64)
    for block in model.modules():
        if getattr(block, "downsample", None) is not None:
            conv = block.downsample[0]
            block.downsample = shortcut_d(conv.in_channels, conv.out_channels, conv.stride[0])
    return model


DEPTHS = {"18": (BasicBlock, (2, 2, 2, 2)), "34": (BasicBlock, (3, 4, 6, 3)), "50": (Bottleneck, (3, 4, 6, 3)),
          "101": (Bottleneck, (3, 4, 23, 3)), "152": (Bottleneck, (3, 8, 36, 3))}
ATTENTION = {"se": Excitation, "eca": ChannelAttention}


@contextlib.contextmanager
def without_initial_values():
    """random_values draws all of them, and PyTorch's initialisation takes seconds for large networks."""
    names = ("kaiming_normal_", "kaiming_uniform_", "uniform_")
    kept = {name: getattr(nn.init, name) for name in names}
    for name in names:
        setattr(nn.init, name, lambda tensor, *args, **more: tensor)
    try:
        yield
    finally:
        for name in names:
            setattr(nn.init, name, kept[name])


def build(name):
    """The network, and the keys of its [model] section here. Names are those of torchvision and timm, such as ecaresnet50d."""
    with without_initial_values():
        return build_empty(name)


def build_empty(name):
    if hasattr(torchvision.models, name):
        return getattr(torchvision.models, name)(), [f"model.arch={name}"]
    prefix, depth = name.split("resnet")
    block, depths = DEPTHS[depth.rstrip("d")]
    keys = ["model.arch=resnet" + depth.rstrip("d")]
    if prefix:
        block = attended(block, ATTENTION[prefix])
        keys.append("model.excitation=yes" if prefix == "se" else "model.eca=yes")
    model = ResNet(block, list(depths))
    if depth.endswith("d"):
        keys += ["model.stem=deep", "model.shortcut=D"]
        model = with_d(model)
    return model, keys


def random_values(model):
    """Draws weights, also those of the BN layers, and BN statistics, so that exchanged tensors change the logits."""
    for name, value in model.state_dict().items():
        if name.endswith("running_mean"):
            value.uniform_(-0.3, 0.3)
        elif name.endswith("running_var"):
            value.uniform_(0.5, 2.0)
        elif value.dim() > 1:
            fan = value.shape[1] * 6 if name == "fc.weight" else value[:1].numel() / value.shape[1] * value.shape[0]  # He, by fan-out
            bound = math.sqrt(6 / fan)
            value.uniform_(-bound, bound)
        elif value.dim() == 1:
            value.uniform_(0.5, 1.2) if name.endswith("weight") else value.uniform_(-0.2, 0.2)


def loads_into_timm(name, tensors):
    """Whether timm's network of this name takes the tensors; None without timm."""
    try:
        import timm
    except ImportError:
        return None
    timm.create_model(name).load_state_dict(tensors, strict=True)
    return True
