"""The guard of programs: what `cresnet plan` prints for every shipped config is kept here, so that a change that should change no program
proves it. scripts/accept-programs.sh accepts a wanted change and shows it; test_programs.py compares.

Kept for each config, for training and evaluation, with and without a memory limit, on each device:
  programs-DEVICE.txt.xz   the texts of --program, one after the other, each below a line "== CASE"
  plans.txt                for each case the memory limit, the size of the pool, the number of its tensors, a hash of --csv
Devices: the CPU without and with oneDNN, whose convolutions need work space; a GPU of compute capability 9.0 and one of 8.0, planned offline
with times measured on an H200 (kernel-times-*.txt.xz; those of 8.0 with CRESNET_CAPABILITY=8.0), which needs a build with CUDA and cuDNN.
renames.txt              old and new names, applied to the kept texts before they are compared: a renaming needs no acceptance.
"""
import concurrent.futures
import glob
import hashlib
import itertools
import json
import lzma
import os
import platform
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
# name -> the library whose version the texts depend on, the options of `plan`, the table of kernel times
DEVICES = {
    "cpu": (None, ["train.device=cpu"], None),
    "cpu-onednn": ("oneDNN", ["train.device=cpu"], None),
    "cuda-9.0": ("cuDNN", ["--target", "h200"], "kernel-times-9.0.txt"),
    "cuda-8.0": ("cuDNN", ["--target", "a100"], "kernel-times-8.0.txt"),
    # Without a table, the first kernel that accepts an op is chosen: a kernel that no longer accepts an op shows here.
    "cuda-9.0-estimates": ("cuDNN", ["--target", "h200"], None),
}
# The part of the pool that the memory limit leaves. Nothing can be offloaded in evaluation: there it rules out large work spaces.
LIMIT_FRACTION = {"step": 0.6, "eval": 0.9}
PROGRAMS, LIMITS = ("step", "eval"), ("whole", "limit")


class Failure(Exception):
    pass


def case_name(config, which, limit):
    return f"{config} {which} {limit}"


def configs():
    return sorted(os.path.basename(path)[:-4] for path in glob.glob(os.path.join(SOURCE, "configs", "*.ini")))


def versions_of_libraries(cresnet):
    """What the build has: {"oneDNN": "2.6.3" or absent, "cuDNN": ...}."""
    text = subprocess.run([cresnet, "--version"], capture_output=True, text=True, check=True).stdout
    found = {}
    if match := re.search(r"^oneDNN +(\d\S*)", text, re.M):
        found["oneDNN"] = match[1]
    if match := re.search(r"^CUDA .*cuDNN (\d[\d.]*)", text, re.M):
        found["cuDNN"] = match[1]
    return found


class Planner:
    """Runs `cresnet plan` for one device."""

    def __init__(self, cresnet, device, folder):
        _, options, table = DEVICES[device]
        # Threads and the level of the processor set the work spaces of the CPU's convolutions.
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("CRESNET_")} | {"CRESNET_CACHE": "off"}
        if platform.machine() == "x86_64":
            self.environment["CRESNET_CPU"] = "avx2"
        self.command = [cresnet, "plan"]
        self.options = ["train.threads=4", *options]
        if table:
            path = os.path.join(folder, table)
            with open(path, "wb") as file:
                file.write(lzma.open(os.path.join(HERE, table + ".xz")).read())
            self.options += ["--kernel-times", path]

    def run(self, config, which, limit, form):
        options = [f"memory.limit={limit}"] if limit else ["memory.limit=none"]
        run = subprocess.run([*self.command, f"configs/{config}.ini", "--which", which, *form, *self.options, *options], cwd=SOURCE,
                             env=self.environment, capture_output=True, text=True)
        # A limit that the plan exceeds is an error after the plan was printed.
        if run.returncode not in (0, 2) or not run.stdout:
            raise Failure(f"{' '.join(run.args)}: {run.stderr.strip().splitlines()[-1] if run.stderr.strip() else 'no output'}")
        return run.stdout

    def limit_for(self, config, which):
        need = json.loads(self.run(config, which, None, ["--json"]))
        fixed = need["store_bytes"] + need["input_bytes"]
        return f"{int((fixed + LIMIT_FRACTION[which] * need['peak_bytes']) / 2**20) + 1}MiB"

    def case(self, config, which, limit):
        """The printed program, and one line about the memory plan."""
        program, heading, csv = self.run(config, which, limit, ["--program", "--csv"]).partition("id,lower,upper,size,offset\n")
        csv = heading + csv
        rows = [line.split(",") for line in csv.splitlines()[1:]]
        pool = max(int(row[3]) + int(row[4]) for row in rows)
        digest = hashlib.sha256(csv.encode()).hexdigest()[:16]
        return program, f"limit={limit or 'none'} tensors={len(rows)} pool={pool} sha256={digest}"


def print_programs(cresnet, device, kept_plans, skip=()):
    """{case: (program, plan)} of all configs but for the cases in skip; memory limits are those of kept_plans, and of new configs a part of what
    they need."""
    with tempfile.TemporaryDirectory() as folder:
        planner = Planner(cresnet, device, folder)

        def limited(config, which):
            kept = kept_plans.get(case_name(config, which, "limit"), "")
            limit = kept.split()[0].removeprefix("limit=") if kept else planner.limit_for(config, which)
            return planner.case(config, which, limit)

        work = {}
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for config, which in itertools.product(configs(), PROGRAMS):
                if case_name(config, which, "whole") not in skip:
                    work[case_name(config, which, "whole")] = pool.submit(planner.case, config, which, None)
                if case_name(config, which, "limit") not in skip:
                    work[case_name(config, which, "limit")] = pool.submit(limited, config, which)
            return {case: result_of(future) for case, future in work.items()}


def result_of(future):
    try:
        return future.result()
    except Failure as failure:
        return str(failure), "none"


def read_kept(device):
    """{case: program}, in the words of today."""
    path = os.path.join(HERE, f"programs-{device}.txt.xz")
    if not os.path.exists(path):
        return {}
    parts = re.split(r"^== (.*)\n", lzma.open(path, "rt").read(), flags=re.M)[1:]
    renames = read_renames()
    return {case: rename(text, renames) for case, text in zip(parts[::2], parts[1::2])}


def write_kept(device, programs):
    text = "".join(f"== {case}\n{program}" for case, program in programs.items())
    with open(os.path.join(HERE, f"programs-{device}.txt.xz"), "wb") as file:
        file.write(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def read_plans():
    """{device: {case: plan}} and {device: version of its library}."""
    plans, versions = {}, {}
    with open(os.path.join(HERE, "plans.txt")) as file:
        for line in file:
            device, config, which, rest = line.rstrip("\n").split(" ", 3)
            if device == "#":
                continue
            if config == "library":
                versions[device] = rest
                continue
            limit, plan = rest.split(" ", 1)
            plans.setdefault(device, {})[case_name(config, which, limit)] = plan
    return plans, versions


def write_plans(plans, versions):
    with open(os.path.join(HERE, "plans.txt"), "w") as file:
        file.write("# device config program whole|limit, then the memory plan. Written by scripts/accept-programs.sh.\n")
        for device in DEVICES:
            if device in versions:
                file.write(f"{device} library version {versions[device]}\n")
            for case, plan in plans.get(device, {}).items():
                file.write(f"{device} {case} {plan}\n")


def read_renames():
    """[(pattern, new)]: whole words only, so that `dy:` is not found in `g.dy:`."""
    renames = []
    with open(os.path.join(HERE, "renames.txt")) as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                old, new = line.split()
                renames.append((re.compile(rf"(?<![\w.]){re.escape(old)}(?![\w.])"), new))
    return renames


def rename(text, renames):
    for pattern, new in renames:
        text = pattern.sub(new, text)
    return text


def same(kept, now):
    """Columns are padded to the longest name, so the width of spaces may change with a renaming."""
    return kept == now or [line.split() for line in kept.splitlines()] == [line.split() for line in now.splitlines()]


def usable_devices(cresnet, versions):
    """([device], [(device, why it is skipped)])"""
    built, use, skipped = versions_of_libraries(cresnet), [], []
    for device, (library, _, table) in DEVICES.items():
        if table and not os.path.exists(os.path.join(HERE, table + ".xz")):
            skipped.append((device, f"{table}.xz is missing"))
        elif library and library not in built:
            skipped.append((device, f"this build has no {library}"))
        elif library and versions.get(device, built[library]) != built[library]:
            skipped.append((device, f"kept with {library} {versions[device]}, this build has {built[library]}"))
        elif device == "cpu" and "oneDNN" in built:
            skipped.append((device, "this build has oneDNN"))
        else:
            use.append(device)
    return use, skipped


def cresnet_path():
    path = os.environ.get("CRESNET_BIN") or os.path.join(SOURCE, "build", "cresnet")
    if not os.path.exists(path):
        sys.exit(f"{path} does not exist: build it, or set CRESNET_BIN")
    return path
