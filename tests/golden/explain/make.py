#!/usr/bin/env python3
"""Writes the golden maps of tests/cli/test_explain.sh: Grad-CAM by PyTorch's automatic differentiation and hooks, in float64, of a network of
basic blocks, of the same network pruned, and of one of bottleneck blocks, for an image that PIL resizes and crops.

    python3 tests/golden/explain/make.py        (PyTorch 2.15, Pillow)

maps.json holds for each network and class the map and a bound of the error of float32: 16 times what PyTorch's own float32 computation of
the same map is off, plus 1e-6 of the largest sum of the terms' magnitudes."""
import copy
import json
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))
import st  # noqa: E402
import torch_blocks as blocks  # noqa: E402

CLASSES, SIZE, RESIZE = 3, 24, 26
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def make(net):
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_(0, 0.3)
            m.running_var.uniform_(0.5, 2)
            nn.init.normal_(m.weight, 1, 0.2)
            nn.init.normal_(m.bias, 0, 0.2)
    return net.eval()


def pruned(net):
    """Half of the weights of each convolution but the first, by magnitude."""
    out = copy.deepcopy(net)
    for name, m in out.named_modules():
        if isinstance(m, nn.Conv2d) and name != "conv1":
            flat = m.weight.data.flatten()
            flat[flat.abs().argsort()[:flat.numel() // 2]] = 0
    return out


def grad_cam(net, x, label):
    """Selvaraju et al. 2017, by hooks. Returns the map, the sums of magnitudes, and the logits."""
    seen = {}
    layer = getattr(net, "layer%d" % net.stages)
    hooks = [layer.register_forward_hook(lambda m, i, y: seen.update(a=y)),
             layer.register_full_backward_hook(lambda m, gi, go: seen.update(g=go[0]))]
    logits = net(x)
    logits[0, label].backward()
    for h in hooks:
        h.remove()
    terms = seen["g"].mean((2, 3), keepdim=True) * seen["a"]
    return F.relu(terms.sum(1))[0].detach(), terms.abs().sum(1)[0].detach(), logits[0].detach()


def pixels():
    y, x = np.mgrid[0:34, 0:46]
    drawn = np.stack([(x * 7 + y * 3) % 256, 255 * ((x - 30) ** 2 + (y - 14) ** 2 < 70), (x * y) % 256], -1).astype(np.uint8)
    image = Image.fromarray(drawn)
    image.save(os.path.join(HERE, "image.png"))
    small = image.resize((RESIZE * 46 // 34, RESIZE), Image.BILINEAR)
    left, top = round((small.width - SIZE) / 2), round((small.height - SIZE) / 2)
    return np.asarray(small.crop((left, top, left + SIZE, top + SIZE)))


def main():
    torch.manual_seed(7)
    image = pixels()
    basic = make(blocks.basic((1, 1), (4, 8), blocks.shortcut_b, classes=CLASSES))
    nets = {"basic": basic, "bottleneck": make(blocks.bottleneck((1, 1), (4, 6), blocks.shortcut_b, classes=CLASSES)), "pruned": pruned(basic)}
    out = {}
    for name, net in nets.items():
        if name != "pruned":
            st.save(os.path.join(HERE, name + ".safetensors"), {k: v.numpy() for k, v in net.state_dict().items()}, {"format": "pt"})
        out[name] = []
        for label in range(CLASSES):
            maps = {}
            for dtype in (torch.float32, torch.float64):
                x = ((torch.from_numpy(image.copy()).to(dtype) / 255 - torch.tensor(MEAN, dtype=dtype)) / torch.tensor(STD, dtype=dtype))
                maps[dtype] = grad_cam(net.to(dtype), x.permute(2, 0, 1)[None].contiguous(), label)
                net.to(torch.float32)
            (a, terms, logits), b = maps[torch.float64], maps[torch.float32][0]
            bound = 16 * float((a - b.double()).abs().max()) + 1e-6 * float(terms.max())
            out[name].append({"map": [[float("%.9g" % v) for v in row] for row in a], "bound": float("%.3g" % bound), "predicted": int(logits.argmax()),
                              "probability": float(torch.softmax(logits, 0)[label])})
            print(name, label, tuple(a.shape), "largest %.4g" % float(a.max()), "bound %.2g" % bound)
    with open(os.path.join(HERE, "maps.json"), "w") as f:
        f.write(json.dumps(out, indent=1).replace(",\n     ", ", ").replace("[\n     ", "[").replace("\n    ]", "]") + "\n")


main()
