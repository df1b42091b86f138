#!/usr/bin/env python3
"""test_torchvision.py: networks of torchvision and timm with random weights, saved by PyTorch as .pth files of both serialisations and as
safetensors, give their logits here, and the weights that are written here load there with strict=True and equal values.

The bound on a logit is computed: four times the largest difference between PyTorch's float32 and float64 logits. Needs torch and torchvision
(Debian: python3-torchvision); without them every network counts as skipped."""
import os
import subprocess

from support import BIN, check, run, skip
import peers

NETWORKS = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "resnext50_32x4d",
            "resnet18d", "resnet34d", "resnet50d", "resnet101d", "seresnet18", "seresnet50", "ecaresnet50d"]
FORMATS = ["safetensors", "zip.pth", "stream.pth"]
ALL_FORMATS = ["resnet18", "resnet50", "seresnet50"]  # the others take turns: which network it is does not change how a file is read
SANITIZED = ["resnet18", "resnet50"]  # with a sanitizer: the kernels and the readers are the same for all
IMAGES, SIZE = 2, 64
TOOL = os.path.join(os.path.dirname(BIN), "tests", "steps_tool")


def logits_here(keys, weights):
    """Logits with the weights of a file; also writes them as saved.safetensors."""
    done = subprocess.run([TOOL, "-", *keys, "data.kind=synthetic", f"data.image_size={SIZE}", "model.classes=1000", "train.device=cpu",
                           "--batches", "pixels.safetensors", "--weights", weights, "--logits", "logits.safetensors", "--save", "saved.safetensors"],
                          capture_output=True, text=True)
    return None if done.returncode else st.load("logits.safetensors")[0]["logits"], done.stderr


def save_as(ending, model):
    state = model.state_dict()
    if ending == "safetensors":
        st.save("weights.safetensors", {name: value.numpy() for name, value in state.items()})
    else:
        torch.save(state, f"weights.{ending}", _use_new_zipfile_serialization=ending == "zip.pth")
    return f"weights.{ending}"


def compare_saved(name, model):
    """What was written here is what PyTorch has."""
    tensors = {key: torch.from_numpy(np.array(value)) for key, value in st.load("saved.safetensors")[0].items()}
    other, _ = torch_resnets.build(name)
    other.load_state_dict(tensors, strict=True)
    wanted = model.state_dict()
    wrong = [key for key, value in other.state_dict().items() if not key.endswith("tracked") and not torch.equal(value, wanted[key])]
    check(f"{name}: written weights", not wrong, wrong[:5])
    if torch_resnets.loads_into_timm(name, tensors):
        check(f"{name}: timm takes them", True)


def one(name, pixels):
    torch.manual_seed(7)
    model, keys = torch_resnets.build(name)
    torch_resnets.random_values(model)
    at = NETWORKS.index(name) % len(FORMATS)
    files = [save_as(ending, model) for ending in (FORMATS if name in ALL_FORMATS else FORMATS[at:at + 1])]
    f32, f64 = torch_nets.imagenet_logits(model, pixels, torch.float32), torch_nets.imagenet_logits(model, pixels, torch.float64)
    model.float()
    theirs = float(np.abs(f32 - f64).max())
    for file in files:
        got, said = logits_here(keys, file)
        gap = float(np.abs(got - f64).max()) if got is not None else float("nan")
        print(f"    {name}, {file}: largest difference from float64: here {gap:.3g}, torchvision float32 {theirs:.3g}")
        check(f"{name}, {file}", 0 < theirs and gap <= 4 * theirs, said)
        os.remove(file)
    compare_saved(name, model)


def main():
    pixels = None
    if have_torch:
        torch.set_grad_enabled(False)
        pixels = np.random.RandomState(3).randint(0, 256, (IMAGES, SIZE, SIZE, 3)).astype(np.uint8)
        st.save("pixels.safetensors", {"images": pixels[None], "labels": np.zeros((1, IMAGES), "<i4")})
    for name in NETWORKS:
        if os.environ.get("CRESNET_SANITIZE") and name not in SANITIZED:
            skip(f"{name} (sanitizer)")
        elif not have_torch:
            skip(f"{name}: no python3 with torch and torchvision")
        else:
            one(name, pixels)


have_torch = peers.with_modules(__file__, "torch", "torchvision", "numpy")
if have_torch:
    import numpy as np
    import torch

    import st
    import torch_nets
    import torch_resnets
run(main)
