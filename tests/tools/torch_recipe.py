#!/usr/bin/env python3
"""torch_recipe.py CONFIG [section.key=value ...] [--weights FILE]: trains the recipe of a cresnet configuration with plain torchvision and
torch.optim, on the same packed images, and prints one JSON line: top-1 of the last epoch, seconds from the start of the process to the
end of the evaluation (as the wall time of `cresnet train`), and seconds of training and evaluation alone.

With --weights (model.safetensors of a cresnet checkpoint) it evaluates these weights instead: top-1 must be that of `cresnet eval`, which proves
that network and images are the same.

What it knows: data.kind packed; crops pad and random_resized, alternating flips, growing image sizes; the networks resnet18, resnet50 and custom
with basic blocks, shortcuts B and D; SGD, and Muon with AdamW; schedules cosine and one_cycle; label smoothing. Other keys that would change the
training are refused. Random numbers are PyTorch's. fp16 with a GradScaler, channels_last and cudnn.benchmark, in eager mode, on a GPU;
fp32 on a CPU. Needs torch and torchvision."""
import argparse
import configparser
import json
import math
import os
import struct
import time

import st
import torch
import torch.nn.functional as F
import torch_blocks as blocks
import torchvision
from torch import nn
from torchvision.transforms import v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DEFAULTS = {
    "model.block": "basic", "model.stem": "imagenet", "model.shortcut": "B", "model.bn_momentum": "0.1", "model.zero_init_last": "no",
    "model.init": "he_fan_out", "data.crop": "random_resized", "data.pad": "4", "data.scale": "0.08,1.0", "data.flip": "random",
    "data.workers": "2", "data.image_sizes": "", "data.eval_resize": "0", "train.label_smoothing": "0", "train.seed": "1",
    "optim.kind": "sgd", "optim.nesterov": "no", "optim.momentum": "0.9", "optim.weight_decay": "0.0001", "optim.decay_norm_bias": "no",
    "optim.beta2": "0.999", "optim.eps": "1e-8", "schedule.kind": "cosine", "schedule.warmup_epochs": "0", "schedule.peak": "0.3",
    "schedule.div_factor": "25", "schedule.final_div_factor": "10000"}
# Keys that do not change the training, or that are read where they are needed.
OTHERS = {"model.arch", "model.depths", "model.widths", "model.classes", "data.kind", "data.root", "data.decode", "data.image_size",
          "train.batch", "train.eval_batch", "train.epochs", "train.eval_every", "train.precision", "train.keep", "train.save_every",
          "train.tensorboard", "train.threads", "optim.lr"}


def read_config(path):
    """{section.key: text} of a file and of the files that it includes."""
    values, text = {}, "\n" + open(path).read()
    head, _, rest = text.partition("\n[")
    for line in head.splitlines():
        if line.strip().startswith("include"):
            values = read_config(os.path.join(os.path.dirname(path), line.split("=", 1)[1].strip()))
    parser = configparser.ConfigParser(comment_prefixes=("#", ";"), interpolation=None)
    parser.read_string("[" + rest)
    return values | {f"{section}.{key}": value for section in parser.sections() for key, value in parser[section].items()}


def numbers(text):
    return [float(v) for v in text.split(",")]


# ---- images ----

class Packed(torch.utils.data.Dataset):
    """A packed file (docs/reference/file-formats.md): JPEG bytes and labels. `epoch` is shared with the workers: [epoch, image size]."""

    def __init__(self, path, config, epoch):
        self.path, self.config, self.epoch, self.file = path, config, epoch, None
        with open(path, "rb") as file:
            header = file.read(128)
            self.count, self.classes = struct.unpack_from("<QI", header, 24)
            file.seek(struct.unpack_from("<Q", header, 48)[0])
            self.index = [struct.unpack_from("<QII", file.read(32)) for _ in range(self.count)]
        self.first_flip = torch.rand(self.count, generator=torch.Generator().manual_seed(int(config["train.seed"]))) < 0.5

    def __len__(self):
        return self.count

    def image(self, i):
        if self.file is None:
            self.file = open(self.path, "rb")  # one for each process
        offset, size, label = self.index[i]
        self.file.seek(offset)
        data = torch.frombuffer(bytearray(self.file.read(size)), dtype=torch.uint8)
        return torchvision.io.decode_jpeg(data, torchvision.io.ImageReadMode.RGB), label


class Train(Packed):
    def __getitem__(self, i):
        image, label = self.image(i)
        epoch, size = self.epoch.tolist()
        if self.config["data.crop"] == "pad":
            image = v2.RandomCrop(size, padding=int(self.config["data.pad"]))(image)
        else:
            image = v2.RandomResizedCrop(size, scale=numbers(self.config["data.scale"]), antialias=True)(image)
        alternate = self.config["data.flip"] == "alternate"
        flip = bool(self.first_flip[i]) != (epoch % 2 == 1) if alternate else bool(torch.rand(()) < 0.5)
        return (image.flip(2) if flip else image), label


class Validation(Packed):
    def __getitem__(self, i):
        image, label = self.image(i)
        size = int(self.config["data.image_size"])
        short_side = int(self.config["data.eval_resize"]) or size * 256 // 224
        return v2.functional.center_crop(v2.functional.resize(image, short_side, antialias=True), size), label


def on_device(images, device):
    x = images.to(device, non_blocking=True).to(memory_format=torch.channels_last).float() / 255
    mean, std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (MEAN, STD))
    return (x - mean) / std


# ---- networks ----

def make_network(config, classes):
    arch = config["model.arch"]
    if arch == "custom":
        depths, widths = ([int(v) for v in numbers(config[f"model.{key}"])] for key in ("depths", "widths"))
        shortcut = {"B": blocks.shortcut_b, "D": blocks.shortcut_d}[config["model.shortcut"]]
        network = blocks.Net(config["model.stem"], lambda *args: blocks.Basic(*args, shortcut), depths, widths, classes)
    else:
        network = getattr(torchvision.models, arch)(num_classes=classes)
        if config["model.stem"] == "cifar":
            network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    mode = config["model.init"].removeprefix("he_")
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            module.momentum = float(config["model.bn_momentum"])
    if config["model.zero_init_last"] == "yes":
        for name, module in network.named_modules():
            if name.startswith("layer") and name.endswith("bn2" if arch != "resnet50" else "bn3"):
                nn.init.zeros_(module.weight)
    return network


class Flat(nn.Module):
    """Stores the filters of a convolution as a matrix, as torch.optim.Muon wants them."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape

    def forward(self, matrix):
        return matrix.view(self.shape)

    def right_inverse(self, filters):
        return filters.flatten(1)


# ---- training ----

def make_optimizers(network, config):
    lr, decay, momentum = (float(config[f"optim.{key}"]) for key in ("lr", "weight_decay", "momentum"))
    nesterov = config["optim.nesterov"] == "yes"
    filters = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    if config["optim.kind"] == "muon":
        for module in filters:
            nn.utils.parametrize.register_parametrization(module, "weight", Flat(module.weight.shape))
    matrices = [m.parametrizations.weight.original for m in filters] if config["optim.kind"] == "muon" else []
    known = {id(p) for p in matrices}
    rest = [p for p in network.parameters() if id(p) not in known]
    plain = [p for p in rest if p.ndim == 1 and config["optim.decay_norm_bias"] == "no"]
    known |= {id(p) for p in plain}
    groups = [{"params": [p for p in rest if id(p) not in known], "weight_decay": decay}, {"params": plain, "weight_decay": 0}]
    if config["optim.kind"] == "muon":
        return [torch.optim.Muon(matrices, lr=lr, weight_decay=decay, momentum=momentum, nesterov=nesterov, adjust_lr_fn="match_rms_adamw"),
                torch.optim.AdamW(groups, lr=lr, betas=(momentum, float(config["optim.beta2"])), eps=float(config["optim.eps"]))]
    return [torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)]


def rate(config, step, steps, steps_per_epoch):
    lr = float(config["optim.lr"])
    if config["schedule.kind"] == "one_cycle":
        start, peak = lr / float(config["schedule.div_factor"]), float(config["schedule.peak"]) * steps - 1
        end = start / float(config["schedule.final_div_factor"])
        low, high, x = (start, lr, step / peak) if step <= peak else (end, lr, 1 - (step - peak) / (steps - 1 - peak))
        return low + (high - low) * 0.5 * (1 - math.cos(math.pi * x))
    warm = float(config["schedule.warmup_epochs"]) * steps_per_epoch
    return lr * step / warm if step < warm else lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


def train(network, config, data, epoch_and_size, device, workers):
    batch, epochs = int(config["train.batch"]), int(config["train.epochs"])
    sizes = [tuple(map(int, part.split("@"))) for part in config["data.image_sizes"].split(",") if part]
    smoothing, optimizers = float(config["train.label_smoothing"]), make_optimizers(network, config)
    loader = torch.utils.data.DataLoader(data, batch, shuffle=True, num_workers=workers, pin_memory=device.type == "cuda", drop_last=True,
                                         persistent_workers=workers > 0, prefetch_factor=4 if workers else None)
    scaler, steps = torch.amp.GradScaler(enabled=device.type == "cuda"), epochs * len(loader)
    step = 0
    for epoch in range(epochs):
        epoch_and_size[0] = epoch
        epoch_and_size[1] = next((size for size, begin in reversed(sizes) if begin <= epoch), int(config["data.image_size"]))
        network.train()
        for images, labels in loader:
            for group in (g for optimizer in optimizers for g in optimizer.param_groups):
                group["lr"] = rate(config, step, steps, len(loader))
            with torch.autocast(device.type, torch.float16, enabled=device.type == "cuda"):
                loss = F.cross_entropy(network(on_device(images, device)), labels.to(device), label_smoothing=smoothing)
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            step += 1
        if not math.isfinite(loss.item()):
            raise SystemExit(f"epoch {epoch + 1}: the loss is not finite")


def evaluate(network, config, data, device, workers):
    loader = torch.utils.data.DataLoader(data, 100, num_workers=workers)
    network.eval()
    with torch.no_grad(), torch.autocast(device.type, torch.float16, enabled=device.type == "cuda"):
        return sum((network(on_device(images, device)).argmax(1).cpu() == labels).sum().item() for images, labels in loader) / len(data)


def process_start():
    """Seconds ago."""
    with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
        return float(uptime.read().split()[0]) - int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def main():
    before = time.monotonic() - process_start()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config")
    p.add_argument("values", nargs="*")
    p.add_argument("--weights")
    a = p.parse_args()
    given = read_config(a.config) | dict(value.split("=", 1) for value in a.values)
    if unknown := sorted(given.keys() - DEFAULTS.keys() - OTHERS):
        raise SystemExit(f"{a.config}: this program does not know {', '.join(unknown)}")
    config = DEFAULTS | given
    if config["data.kind"] != "packed":
        raise SystemExit("data.kind must be packed: cresnet data pack CONFIG OUT, then data.kind=packed data.root=OUT")
    torch.manual_seed(int(config["train.seed"]))
    torch.backends.cudnn.benchmark = True
    device, workers = torch.device("cuda" if torch.cuda.is_available() else "cpu"), int(config["data.workers"])
    epoch_and_size = torch.zeros(2, dtype=torch.long).share_memory_()
    training, validation = (kind(os.path.join(config["data.root"], f"{name}.crpk"), config, epoch_and_size)
                            for kind, name in ((Train, "train"), (Validation, "val")))
    network = make_network(config, training.classes)
    if a.weights:
        tensors = {name: torch.from_numpy(values.copy()) for name, values in st.load(a.weights)[0].items()}
        missing, left = network.load_state_dict(tensors, strict=False)
        if left or any(not name.endswith("num_batches_tracked") for name in missing):
            raise SystemExit(f"{a.weights}: missing {missing}, not used {left}")
    network = network.to(device).to(memory_format=torch.channels_last)
    begin = time.monotonic()
    if not a.weights:
        train(network, config, training, epoch_and_size, device, workers)
    top1 = evaluate(network, config, validation, device, workers)
    end = time.monotonic()
    print(json.dumps({"config": a.config, "seed": int(config["train.seed"]), "top1": top1, "seconds": round(end - before, 2),
                      "training_seconds": round(end - begin, 2), "torch": torch.__version__, "device": device.type}))


if __name__ == "__main__":
    main()
