#!/usr/bin/env python3
"""kernel-families.py [CRESNET]: prints the table of docs/internals/kernel-families.md: for each family of GPU kernels its lines of code, and
the shipped networks whose plan chooses it, with the share of the predicted time, for compute capability 9.0 and 8.0.

Needs a build with CUDA and cuDNN (default: build/cresnet), but no GPU: the plans are made offline (`cresnet plan CONFIG --target GPU
--kernel-times FILE`) from the kernel times that tests/guard keeps. Where a table has no time for an op, the plan estimates it."""
import collections
import glob
import lzma
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GPUS = {"9.0": ("h200", "kernel-times-9.0.txt"), "8.0": ("a100", "kernel-times-8.0.txt")}
# name -> beginnings of its kernels' names, its files
FAMILIES = {
    "cuDNN": (["cudnn."], ["cuda/conv/cudnn"]),
    "generic": (["cuda.conv", "cuda.conv_dgrad", "cuda.conv_wgrad", "cuda.group_conv"], ["cuda/conv/generic"]),
    "point_conv": (["cuda.point_conv.", "cuda.point_dgrad."], ["cuda/conv/pointwise/point_conv*", "cuda/conv/mma/point_mma*", "cuda/conv/mma/panel.cuh"]),
    "point_grad": (["cuda.point_grad."], ["cuda/conv/pointwise/point_grad*", "cuda/conv/mma/point_grad*", "cuda/common/point_grad_fold.cuh"]),
    "gram": (["cuda.gram.", "cuda.gram_wgmma.", "cuda.point_gram."], ["cuda/conv/gram", "cuda/conv/mma/gram", "cuda/conv/pointwise/point_gram*"]),
    "conv3x3": (["cuda.conv3x3"], ["cuda/conv/conv3x3", "cuda/conv/mma/conv3x3*"]),
    "stem": (["cuda.stem"], ["cuda/conv/stem", "cuda/conv/mma/stem*"]),
    "int8_conv": (["cuda.int8_conv.", "cuda.int8_conv_mma", "cuda.int8_conv_plain", "cuda.int8_pack", "cuda.int8_stem"], ["cuda/conv/int8"]),
    "conv_pair, conv_chain": (["cuda.conv_pair", "cuda.conv_chain", "cuda.int8_conv_pair", "cuda.int8_conv_chain"], ["cuda/conv/pair"]),
    "cifar": (["cuda.cifar_"], ["cuda/conv/cifar"]),
    "sparse: direct": (["cuda.sparse_"], ["cuda/sparse/direct"]),
    "sparse: block": (["cuda.block_sparse"], ["cuda/sparse/block"]),
    "sparse: two_four": (["cuda.two_four"], ["cuda/sparse/two_four"]),
    "sparse: mma_sp": (["cuda.mma_sp"], ["cuda/sparse/mma_sp"]),
    "sparse: wgmma_sp": (["cuda.wgmma_sp"], ["cuda/sparse/wgmma_sp"]),
}
# Networks that no config ships, as options of a config that does: name -> (config, options).
VARIANTS = {
    "resnet50 fp32": ("resnet50", ["train.precision=fp32"]),
    "resnet50 bf16": ("resnet50", ["train.precision=bf16"]),
    "resnet18 fp32": ("resnet18", ["train.precision=fp32"]),
}


def lines_of(patterns):
    files = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return sum(open(os.path.join(ROOT, name)).read().count("\n") for name in files)


def family_of(kernel):
    """The family whose beginning is the longest; None for kernels that are not convolutions."""
    found = [(len(start), name) for name, (starts, _) in FAMILIES.items() for start in starts
             if kernel == start or kernel.startswith(start if start.endswith((".", "_")) or kernel[len(start):len(start) + 1] in "._" else start + ".")]
    return max(found)[1] if found else None


def shares(cresnet, config, options, which, target, table):
    """{family: part of the predicted time} of one plan."""
    command = [cresnet, "plan", f"configs/{config}.ini", "--which", which, "--target", target, *options]
    if table:
        command += ["--kernel-times", table]
    run = subprocess.run(command, cwd=ROOT, env=os.environ | {"CRESNET_CACHE": "off"}, capture_output=True, text=True)
    rows = re.findall(r"^ +\d+ +([\d.]+)  (\S+)$", run.stdout, re.M)
    if not rows:
        raise SystemExit(f"kernel-families.py: {' '.join(command)} lists no kernels: {run.stderr.strip()}")
    total, parts = sum(float(ms) for ms, _ in rows), collections.Counter()
    for ms, kernel in rows:
        if family := family_of(kernel):
            parts[family] += float(ms) / total if total else 0
    return parts


def main():
    cresnet = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build", "cresnet"))
    networks = {os.path.basename(p)[:-4]: (os.path.basename(p)[:-4], []) for p in sorted(glob.glob(os.path.join(ROOT, "configs", "*.ini")))}
    networks |= VARIANTS
    chosen = {name: collections.defaultdict(dict) for name in FAMILIES}
    with tempfile.TemporaryDirectory() as folder:
        for capability, (target, table) in GPUS.items():
            kept, path = os.path.join(ROOT, "tests", "guard", table + ".xz"), None
            if os.path.exists(kept):
                path = os.path.join(folder, table)
                with open(path, "wb") as file:
                    file.write(lzma.open(kept).read())
            for network, (config, options) in networks.items():
                for which in ("step", "eval"):
                    for family, part in shares(cresnet, config, options, which, target, path).items():
                        chosen[family][capability][f"{network} {which}"] = part
    print("| family | lines | chosen on 9.0 by | chosen on 8.0 by |\n|---|---:|---|---|")
    for family, (_, files) in FAMILIES.items():
        cells = []
        for capability in GPUS:
            found = sorted(chosen[family][capability].items(), key=lambda item: -item[1])
            cells.append(f"{len(found)} of {2 * len(networks)} programs: " + ", ".join(f"{name} {100 * part:.0f} %" for name, part in found[:4]) if found else "none")
        print(f"| {family} | {lines_of(files):,} | {' | '.join(cells)} |")


main()
