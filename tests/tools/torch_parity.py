#!/usr/bin/env python3
"""torch_parity.py: compares fp32 training with PyTorch: the same initial weights (from cresnet), the same batches, plain SGD as the
configuration says, TF32 off. PyTorch runs several times with different convolution algorithms, which shows the distance that
rounding alone causes between two runs of the same training.

Targets, both needed for exit code 0:
  - each of the first 5 losses is within 1e-4 (relative) of PyTorch's run with deterministic algorithms. At the learning rate of the
    configuration an untrained network doubles rounding differences many times per step, so that two PyTorch runs miss this target
    too. If cresnet misses it, the first 5 steps are repeated with a learning rate that is 100 times smaller, and this result counts.
  - over all steps, the distance from PyTorch is at most twice the distance between two PyTorch runs. The distance is the largest
    |difference of losses| of any step, among runs that use the library (cuDNN; oneDNN on a CPU). A single training is not
    conclusive, because any two runs diverge where a step is steep. With --seeds N, N trainings start from different weights, and
    the mean distance of cresnet from the PyTorch runs is compared with the mean distance of all pairs of PyTorch runs.

  torch_parity.py --tool build/tests/steps_tool --net resnet18 --device cuda [--size 224] [--photos FOLDER]
  torch_parity.py --tool build/tests/steps_tool --net resnet20 --device cuda [--cifar FOLDER]
"""
import argparse
import contextlib
import json
import os
import tempfile
import time

import numpy as np
import torch_nets as nets
import torch

NETS = {"resnet18": ("configs/resnet18.ini", 64, 224, 8), "resnet20": ("configs/cifar10-resnet20.ini", 128, 32, 16)}
FIRST, FIRST_TARGET, SPREAD_TARGET = 5, 1e-4, 2.0


@contextlib.contextmanager
def library(enabled=True, benchmark=False, deterministic=False):
    c = torch.backends.cudnn # not c.flags(): it would also touch TF32
    c.enabled, c.benchmark, c.deterministic = enabled, benchmark, deterministic
    try:
        yield
    finally:
        c.enabled, c.benchmark, c.deterministic = True, False, False


def mkldnn(enabled):
    return torch.backends.mkldnn.flags(enabled=enabled)


# name, context, channels_last, uses the library
VARIANTS = {
    "cuda": [("deterministic", lambda: library(deterministic=True), False, True),
             ("benchmark", lambda: library(benchmark=True), False, True),
             ("channels_last", lambda: library(benchmark=True), True, True),
             ("without cuDNN", lambda: library(enabled=False), False, False)],
    "cpu": [("oneDNN", lambda: mkldnn(True), False, True),
            ("oneDNN, channels_last", lambda: mkldnn(True), True, True),
            ("without oneDNN", lambda: mkldnn(False), False, True)],
}


def train(said, weights, images, labels, steps, device, context, channels_last):
    format_ = torch.channels_last if channels_last else torch.contiguous_format
    model = nets.build(said, weights).to(device).to(memory_format=format_)
    decayed = [p for p in model.parameters() if p.dim() > 1 or said["decay_norm_bias"]]
    plain = [p for p in model.parameters() if not (p.dim() > 1 or said["decay_norm_bias"])]
    groups = [{"params": decayed, "weight_decay": said["weight_decay"]}, {"params": plain, "weight_decay": 0.0}]
    optim = torch.optim.SGD([g for g in groups if g["params"]], said["lr"], momentum=said["momentum"], nesterov=said["nesterov"])
    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=said["label_smoothing"])
    x = [nets.normalised(b, said, device).contiguous(memory_format=format_) for b in images]
    y = [torch.from_numpy(b).long().to(device) for b in labels]
    losses = []
    with context():
        for i in range(steps):
            optim.zero_grad(set_to_none=True)
            loss = loss_of(model(x[i % len(x)]), y[i % len(y)])
            loss.backward()
            optim.step()
            losses.append(loss.detach())
    return np.array([float(l) for l in losses])


def distance(a, b):
    return float(np.max(np.abs(a - b))), float(np.mean(np.abs(a - b)))


def first_losses(a, b):
    return float(np.max(np.abs(a[:FIRST] - b[:FIRST]) / np.abs(b[:FIRST])))


def print_distances(ours, runs):
    names = list(runs)
    print("\n%-40s %10s %14s %14s" % ("ours against PyTorch", "first %d" % FIRST, "largest |d|", "mean |d|"))
    for n in names:
        print("  %-38s %10.2e %14.4e %14.4e" % ((n, first_losses(ours, runs[n])) + distance(ours, runs[n])))
    print("PyTorch against PyTorch")
    for i, a in enumerate(names):
        for b in names[i + 1:]:
            print("  %-38s %10.2e %14.4e %14.4e" % ((a + " / " + b, first_losses(runs[a], runs[b])) + distance(runs[a], runs[b])))


def compare_first(ours, runs, lr):
    theirs = list(runs.values())[0]
    others = max([first_losses(r, theirs) for r in runs.values()])
    first = first_losses(ours, theirs)
    ok = bool(np.isfinite(first)) and first <= FIRST_TARGET
    print("first %d losses, lr %g: %.2e relative (PyTorch runs among themselves %.2e), target %.0e: %s"
          % (FIRST, lr, first, others, FIRST_TARGET, "PASS" if ok else "FAIL"))
    return {"lr": lr, "ours": first, "theirs": others, "ok": ok}


def compare_all(ours, runs, uses_library):
    names = [n for n in runs if uses_library[n]]
    spread, a, b = max([(distance(runs[x], runs[y])[0], x, y) for i, x in enumerate(names) for y in names[i + 1:]])
    far, which = max((distance(ours, runs[n])[0], n) for n in (a, b))
    mean_ratio = max(distance(ours, runs[n])[1] for n in (a, b)) / max(distance(runs[a], runs[b])[1], 1e-300)
    ok = bool(np.all(np.isfinite(ours))) and far <= SPREAD_TARGET * spread
    print("all %d steps: ours is %.3e from \"%s\", \"%s\" and \"%s\" are %.3e apart: %.2f times (means: %.2f times), target %.0f: %s"
          % (len(ours), far, which, a, b, spread, far / max(spread, 1e-300), mean_ratio, SPREAD_TARGET, "PASS" if ok else "FAIL"))
    return {"pair": [a, b], "spread": spread, "ours": far, "ratio": far / max(spread, 1e-300), "mean_ratio": mean_ratio, "ok": ok}


def compare_seeds(trainings, uses_library):
    ours_sum, theirs_sum, ratios = 0.0, 0.0, []
    for seed, (ours, runs) in enumerate(trainings, 1):
        names = [n for n in runs if uses_library[n]]
        mine = float(np.mean([distance(ours, runs[n])[0] for n in names]))
        theirs = float(np.mean([distance(runs[x], runs[y])[0] for i, x in enumerate(names) for y in names[i + 1:]]))
        print("training %d: ours from the PyTorch runs %.4e, PyTorch runs from each other %.4e (means), ratio %.2f" % (seed, mine, theirs, mine / theirs))
        ours_sum, theirs_sum = ours_sum + mine, theirs_sum + theirs
        ratios.append(mine / theirs)
    ratio = ours_sum / theirs_sum
    ok = bool(np.isfinite(ratio)) and ratio <= SPREAD_TARGET
    print("all %d steps: %d trainings, ours is %.2f times as far from the PyTorch runs as they are from each other (from %.2f to %.2f), target %.0f: %s"
          % (len(trainings[0][0]), len(trainings), ratio, min(ratios), max(ratios), SPREAD_TARGET, "PASS" if ok else "FAIL"))
    return {"ratio": ratio, "ratios": ratios, "ok": ok}


def run_all(a, config, values, folder, images, labels, steps):
    """(output of steps_tool, our losses, {name: PyTorch's losses}, {name: uses the library})"""
    weights = os.path.join(folder, "start.safetensors")
    said = nets.steps_tool(a.tool, os.path.join(nets.SOURCE, config), values + a.set,
                           ["--batches", os.path.join(folder, "batches.safetensors"), "--steps", str(steps), "--save", weights])
    ours = np.array([float("nan") if l is None else l for l in said["losses"]])
    runs, uses = {}, {}
    for name, context, channels_last, library_ in VARIANTS[a.device][:a.variants]:
        start = time.time()
        try:
            runs[name] = train(said, weights, images, labels, steps, a.device, context, channels_last)
            uses[name] = library_
            print("PyTorch, %s: %.1f s" % (name, time.time() - start), flush=True)
        except RuntimeError as e:
            print("PyTorch, %s: failed: %s" % (name, str(e)[:200]), flush=True)
    return said, ours, runs, uses


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tool", required=True, help="the built steps_tool")
    p.add_argument("--net", choices=sorted(NETS), default="resnet20")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--steps", type=int, default=50)
    p.add_argument("--batch", type=int)
    p.add_argument("--batches", type=int, help="different batches, used in turn")
    p.add_argument("--size", type=int, help="pixels a side (resnet18: 224)")
    p.add_argument("--cifar", help="folder with data_batch_1.bin or .bin.xz")
    p.add_argument("--photos", "--pictures", help="folder of class folders of photos")
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="more values for cresnet")
    p.add_argument("--lr", type=float, help="learning rate, instead of the configuration's")
    p.add_argument("--seeds", type=int, default=1, help="trainings from different weights, for the distance over all steps")
    p.add_argument("--variants", type=int, default=9, help="number of PyTorch runs, at least 2")
    p.add_argument("--out", help="JSON with all losses")
    a = p.parse_args()
    nets.exact_fp32()
    config, batch, size, count = NETS[a.net]
    batch, size, count = a.batch or batch, a.size or size, a.batches or count
    values = ["data.kind=synthetic", "model.classes=10", "train.precision=fp32", "train.device=" + a.device]
    if a.net == "resnet18": # the configuration's learning rate is for 256 images
        values += ["data.image_size=%d" % size, "optim.lr=%g" % (0.1 * batch / 256)]
    if a.lr:
        values += ["optim.lr=%g" % a.lr]
    if a.net == "resnet20" and a.cifar:
        images, labels, source = nets.cifar_images(a.cifar, count * batch)
    elif a.net == "resnet18" and a.photos:
        images, labels, source = nets.folder_images(a.photos, count * batch, size)
    else:
        images, labels, source = nets.synthetic_images(count * batch, size, 10, 1)
    with tempfile.TemporaryDirectory() as d:
        images, labels = nets.save_batches(os.path.join(d, "batches.safetensors"), images, labels, batch)
        said, ours, runs, uses = run_all(a, config, values, d, images, labels, a.steps)
        print("%s, %d px, batch %d, %d batches of %s, lr %g, %d steps; %s; %s" % (a.net, size, batch, len(images), source, said["lr"],
              a.steps, said["device"], nets.about(a.device)))
        print("step " + " ".join("%14s" % n[:14] for n in ["ours"] + list(runs)))
        for i in sorted(set(range(min(FIRST, a.steps))) | set(range(9, a.steps, 10))):
            print("%4d " % (i + 1) + " ".join("%14.8f" % r[i] for r in [ours] + list(runs.values())))
        print_distances(ours, runs)
        found = {"first": compare_first(ours, runs, said["lr"])}
        if not found["first"]["ok"]:
            found["first_at_config_lr"] = found["first"]
            again = run_all(a, config, values + ["optim.lr=%.9g" % (said["lr"] / 100)], d, images, labels, FIRST)
            found["first"] = compare_first(again[1], again[2], again[0]["lr"])
        trainings = [(ours, runs)]
        for seed in range(2, a.seeds + 1):
            more = run_all(a, config, values + ["train.seed=%d" % seed], d, images, labels, a.steps)
            trainings.append((more[1], more[2]))
        found["all"] = compare_all(ours, runs, uses) if a.seeds == 1 else compare_seeds(trainings, uses)
    if a.out:
        with open(a.out, "w") as f:
            json.dump({"net": a.net, "said": said, "found": found, "losses": {"ours": ours.tolist(), **{k: v.tolist() for k, v in runs.items()}}}, f)
    ok = found["first"]["ok"] and found["all"]["ok"]
    print("parity %s: %s" % (a.net, "PASS" if ok else "FAIL"))
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
