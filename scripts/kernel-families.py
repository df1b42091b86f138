#!/usr/bin/env python3
"""kernel-families.py [CRESNET]: prints the tables of docs/internals/kernel-families.md, for compute capability 9.0 and 8.0.
  kernel-families.py [CRESNET]                      for each family of GPU kernels its lines of code, and the shipped networks whose plan chooses
                                                    it, with the share of the predicted time
  kernel-families.py [CRESNET] --without [NAME...]  how much longer the predicted time of each program is without a family, or without the kernels
                                                    whose names begin with NAME, as if the table had been measured on a GPU that lacks them

Needs a build with CUDA and cuDNN (default: build/cresnet), but no GPU: the plans are made offline (`cresnet plan CONFIG --target GPU
--kernel-times FILE`) from the kernel times that tests/guard keeps. Where a table has no time for an op, the plan estimates it."""
import argparse
import collections
import concurrent.futures
import glob
import lzma
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "guard"))
import rekey_times  # noqa: E402

GPUS = {"9.0": ("h200", "kernel-times-9.0.txt"), "8.0": ("a100", "kernel-times-8.0.txt")}
# name -> beginnings of its kernels' names, its files
FAMILIES = {
    "cuDNN": (["cudnn."], ["cuda/conv/cudnn"]),
    "generic": (["cuda.conv", "cuda.conv_dgrad", "cuda.conv_wgrad", "cuda.group_conv"], ["cuda/conv/generic"]),
    "point_conv": (["cuda.point_conv.", "cuda.point_dgrad."], ["cuda/conv/pointwise/point_conv*", "cuda/conv/mma/point_mma*", "cuda/conv/mma/panel.cuh"]),
    "point_grad": (["cuda.point_grad."], ["cuda/conv/pointwise/point_grad*", "cuda/conv/mma/point_grad*", "cuda/common/point_grad_fold.cuh"]),
    "gram": (["cuda.gram.", "cuda.gram_wgmma.", "cuda.point_gram."], ["cuda/conv/gram", "cuda/conv/mma/gram", "cuda/conv/pointwise/point_gram*"]),
    "conv3x3": (["cuda.conv3x3"], ["cuda/conv/conv3x3", "cuda/conv/mma/conv3x3*"]),
    "split_conv": (["cuda.split_conv."], ["cuda/conv/fused/split_conv*", "cuda/common/split_conv.cuh"]),
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


def plan(cresnet, config, options, which, target, table):
    """[(ms, kernel)] of one plan."""
    command = [cresnet, "plan", f"configs/{config}.ini", "--which", which, "--target", target, *options, "--kernel-times", table]
    run = subprocess.run(command, cwd=ROOT, env=os.environ | {"CRESNET_CACHE": "off"}, capture_output=True, text=True)
    rows = re.findall(r"^ +\d+ +([\d.]+)  (\S+)$", run.stdout, re.M)
    if not rows:
        raise SystemExit(f"kernel-families.py: {' '.join(command)} lists no kernels: {run.stderr.strip()}")
    return [(float(ms), kernel) for ms, kernel in rows]


def shares(rows):
    """{family: part of the predicted time}"""
    total, parts = sum(ms for ms, _ in rows), collections.Counter()
    for ms, kernel in rows:
        if family := family_of(kernel):
            parts[family] += ms / total if total else 0
    return parts


# ---- without a family ----

REJECTED = ("conv ", "conv_dgrad ", "conv_wgrad ", "conv_grad ")  # ops of which a table says "no kernel accepts it" (kernel "-")
NEVER = 1000  # times as long: no plan chooses such a kernel where it has a choice


def without(text, absent):
    """The table of a GPU that lacks the kernels of which absent(kernel) is true."""
    header, entries = rekey_times.parse(text)
    others = {signature for _, _, (kernel, signature) in entries if not absent(kernel)}
    lines = []
    for ns, algorithm, (kernel, signature) in entries:
        if not absent(kernel):
            lines.append((ns, kernel, algorithm, signature))
        elif signature not in others and signature.startswith(REJECTED):
            lines.append(("1", "-", "0", signature))
        elif signature not in others:
            lines.append((str(int(ns) * NEVER), kernel, algorithm, signature))
    body = header + "".join("\t".join(line) + "\n" for line in dict.fromkeys(lines))
    return body + f"sum\t{rekey_times.checksum(body)}\n"


def absent_kernels(name):
    """Tells the kernels of a family, or those whose names begin with `name`."""
    return (lambda kernel: family_of(kernel) == name) if name in FAMILIES else (lambda kernel: kernel.startswith(name))


class Plans:
    """All programs of a capability, by the kept table or by one without some kernels."""

    def __init__(self, cresnet, capability, folder):
        self.cresnet, self.folder = cresnet, folder
        self.target, self.table = GPUS[capability]
        with lzma.open(os.path.join(ROOT, "tests", "guard", self.table + ".xz"), "rt") as file:
            self.text = file.read()
        configs = [os.path.basename(path)[:-4] for path in sorted(glob.glob(os.path.join(ROOT, "configs", "*.ini")))]
        networks = {config: (config, []) for config in configs} | VARIANTS
        self.programs = {f"{network} {which}": (*networks[network], which) for network in networks for which in ("step", "eval")}
        self.all = self.run(self.text, list(self.programs))

    def run(self, text, names):
        """{program: [(ms, kernel)]}"""
        path = os.path.join(self.folder, self.table)
        with open(path, "w") as file:
            file.write(text)
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            done = {name: pool.submit(plan, self.cresnet, *self.programs[name], self.target, path) for name in names}
            return {name: future.result() for name, future in done.items()}

    def losses(self, name):
        """[(how much longer, program)] of the programs that choose these kernels, the largest first; None: nothing replaces them."""
        absent = absent_kernels(name)
        measured = [program for program in self.all if program.rsplit(" ", 1)[0] not in VARIANTS]  # no times of other types are kept
        users = [program for program in measured if any(absent(kernel) for _, kernel in self.all[program])]
        found = []
        for program, rows in self.run(without(self.text, absent), users).items():
            longer = sum(ms for ms, _ in rows) / sum(ms for ms, _ in self.all[program]) - 1
            found.append((None if any(absent(kernel) for _, kernel in rows) else longer, program))
        return sorted(found, key=lambda item: (item[0] is not None, -(item[0] or 0)))


def cell(losses):
    """The largest loss, then the number of programs."""
    if not losses:
        return "not chosen"
    longer, program = losses[0]
    return f"nothing replaces it ({program})" if longer is None else f"{100 * longer:.2f} % ({program}; {len(losses)} programs)"


def print_losses(plans, names):
    print("| absent | on 9.0 | on 8.0 |\n|---|---:|---:|")
    for name in names:
        print(f"| {name} | {' | '.join(cell(plans[capability].losses(name)) for capability in GPUS)} |", flush=True)


def print_families(plans):
    print("| family | lines | chosen on 9.0 by | chosen on 8.0 by |\n|---|---:|---|---|")
    for family, (_, files) in FAMILIES.items():
        cells = []
        for capability in GPUS:
            parts = {program: shares(rows)[family] for program, rows in plans[capability].all.items()}
            found = sorted(((part, program) for program, part in parts.items() if part), reverse=True)
            largest = ", ".join(f"{program} {100 * part:.0f} %" for part, program in found[:4])
            cells.append(f"{len(found)} of {len(parts)} programs: {largest}" if found else "none")
        print(f"| {family} | {lines_of(files):,} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cresnet", nargs="?", default=os.path.join(ROOT, "build", "cresnet"))
    parser.add_argument("--without", nargs="*", metavar="NAME")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plans = {capability: Plans(os.path.abspath(options.cresnet), capability, folder) for capability in GPUS}
        if options.without is None:
            print_families(plans)
        else:
            print_losses(plans, options.without or FAMILIES)


main()
