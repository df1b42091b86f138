#!/usr/bin/env python3
"""The torchvision part of test_torchvision.c.

  torchvision_peer.py make DIR      for resnet18, resnet50, wide_resnet50_2 and resnext50_32x4d: random weights with lively BN statistics in
                                    DIR/NAME.safetensors, .zip.pth and .stream.pth (both serialisations of torch.save), uint8
                                    images DIR/NAME.u8 [4][64][64][3], and logits [4][1000] in DIR/NAME.f64 (float64) and
                                    DIR/NAME.f32 (float32)
  torchvision_peer.py load FILE ARCH ORIGINAL   loads a checkpoint of ours with strict=True (into timm's network too, where that is installed) and compares every value with
                                                the file it came from; exit 1 when torchvision refuses or a value differs
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np
import st
import torch
import torch_nets
import torchvision


def make(where):
    for name in ("resnet18", "resnet50", "wide_resnet50_2", "resnext50_32x4d"):
        torch.manual_seed(7)
        model = getattr(torchvision.models, name)()
        for k, v in model.state_dict().items():
            if k.endswith("running_mean"):
                v.uniform_(-0.3, 0.3)
            elif k.endswith("running_var"):
                v.uniform_(0.5, 2.0)
        for k, p in model.named_parameters():
            if p.dim() == 1 and not k.startswith("fc"):
                torch.nn.init.uniform_(p, 0.5, 1.2) if k.endswith("weight") else torch.nn.init.uniform_(p, -0.2, 0.2)
        st.save(f"{where}/{name}.safetensors", {k: v.detach().numpy() for k, v in model.state_dict().items()})
        torch.save(model.state_dict(), f"{where}/{name}.zip.pth")
        torch.save(model.state_dict(), f"{where}/{name}.stream.pth", _use_new_zipfile_serialization=False)
        pixels = np.random.RandomState(3).randint(0, 256, (4, 64, 64, 3)).astype(np.uint8)
        torch_nets.save_logits(f"{where}/{name}", model, pixels)


def load(path, arch, original):
    tensors = {k: torch.from_numpy(np.array(v)) for k, v in st.load(path)[0].items()}
    model = getattr(torchvision.models, arch)()
    model.load_state_dict(tensors, strict=True)
    for name, value in st.load(original)[0].items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(model.state_dict()[name], torch.from_numpy(np.array(value))), name
    try: # timm has the same names
        import timm
    except ImportError:
        timm = None
    if timm:
        timm.create_model(arch).load_state_dict(tensors, strict=True)
    print("loaded", len(tensors), "tensors")


if __name__ == "__main__":
    make(sys.argv[2]) if sys.argv[1] == "make" else load(*sys.argv[2:5])
