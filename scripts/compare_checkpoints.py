#!/usr/bin/env python3
"""Compares the files of two training runs bit by bit. compare-builds.sh calls it.

compare_checkpoints.py checkpoints A B            two checkpoint folders (step-N): model, EMA and training state
compare_checkpoints.py tensors A.safetensors B.safetensors
compare_checkpoints.py logs A.jsonl B.jsonl FIRST LAST    losses and metrics of the training steps FIRST to LAST
compare_checkpoints.py json A.json B.json KEY...  values of these keys in one-line JSON files; KEY|OLD: either spelling

Prints one line that says what was compared or what differs. Exit code: 0 identical, 1 different, 2 unreadable.
"""
import json
import os
import struct
import sys

# Metadata that describes the training state. Other metadata, such as versions, may differ between two programs.
STATE_KEYS = ("data_fingerprint", "ranks", "seed", "step", "steps_per_epoch")
# Values of a log line that two programs must agree on. Speeds and durations are not among them.
LOG_KEYS = ("loss", "grad_norm", "loss_scale", "top1", "top5", "lr", "images", "ema_loss", "ema_top1", "ema_top5",
            "sparsity", "pruned")
MAX_DIFFERENCES = 4


class Unreadable(Exception):
    """A file is missing or is not what it should be."""


class SafetensorsFile:
    """A safetensors file: `tensor` maps names to (dtype, shape, bytes)."""

    def __init__(self, path):
        try:
            with open(path, "rb") as file:
                data = memoryview(file.read())
            (length,) = struct.unpack("<Q", data[:8])
            header = json.loads(bytes(data[8:8 + length]))
            self.metadata = header.pop("__metadata__", {})
            body = data[8 + length:]
            self.tensor = {name: (entry["dtype"], tuple(entry["shape"]), body[slice(*entry["data_offsets"])])
                           for name, entry in header.items()}
        except (OSError, ValueError, KeyError, struct.error) as error:
            raise Unreadable(f"{path}: {error}") from error


def summarize(differences):
    more = len(differences) - MAX_DIFFERENCES
    return "; ".join(differences[:MAX_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")


def tensor_differences(a, b, label=""):
    differences = []
    for name in sorted(set(a.tensor) | set(b.tensor)):
        if name not in a.tensor or name not in b.tensor:
            differences.append(f"{label}{name} is only in {'BEFORE' if name in a.tensor else 'AFTER'}")
            continue
        (dtype_a, shape_a, bytes_a), (dtype_b, shape_b, bytes_b) = a.tensor[name], b.tensor[name]
        if (dtype_a, shape_a) != (dtype_b, shape_b):
            differences.append(f"{label}{name}: {dtype_a} {list(shape_a)} against {dtype_b} {list(shape_b)}")
        elif bytes_a != bytes_b:
            differences.append(f"{label}{name}: values differ")
    return differences


def compare_checkpoints(folder_a, folder_b):
    differences, tensors, size = [], 0, 0
    for part in ("model", "state", "ema"):
        paths = [os.path.join(folder, part + ".safetensors") for folder in (folder_a, folder_b)]
        if part == "ema" and not any(map(os.path.exists, paths)):
            continue
        a, b = map(SafetensorsFile, paths)
        differences += tensor_differences(a, b, part + ": ")
        if part == "state":
            differences += [f"state: {key} is {a.metadata.get(key)} against {b.metadata.get(key)}"
                            for key in STATE_KEYS if a.metadata.get(key) != b.metadata.get(key)]
        tensors += len(a.tensor)
        size += sum(len(entry[2]) for entry in a.tensor.values())
    return differences, f"{tensors} tensors, {size / 1e6:.1f} MB"


def compare_tensors(path_a, path_b):
    a, b = SafetensorsFile(path_a), SafetensorsFile(path_b)
    return tensor_differences(a, b), f"{len(a.tensor)} tensors"


def read_log(path, first, last):
    """Values by (event, step), of steps first to last."""
    values = {}
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                entry = json.loads(line)
                step = entry.get("step", 0)
                if entry["event"] in ("train", "eval", "prune") and first <= step <= last:
                    values[entry["event"], step] = {key: entry[key] for key in LOG_KEYS if key in entry}
    except (OSError, ValueError, KeyError) as error:
        raise Unreadable(f"{path}: {error}") from error
    return values


def compare_logs(path_a, path_b, first, last):
    first, last = int(first), int(last)
    a, b = read_log(path_a, first, last), read_log(path_b, first, last)
    for path, log in ((path_a, a), (path_b, b)):
        missing = [step for step in range(first, last + 1) if "loss" not in log.get(("train", step), {})]
        if missing:
            raise Unreadable(f"{path}: no loss of step {missing[0]}")
    differences = []
    for key in sorted(set(a) | set(b), key=lambda k: (k[1], k[0])):
        if a.get(key) != b.get(key):
            differences.append(f"{key[0]} at step {key[1]}: {a.get(key)} against {b.get(key)}")
    return differences, f"{last - first + 1} losses, last {a['train', last]['loss']:.9g}"


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.loads(file.read().strip().splitlines()[-1])
    except (OSError, ValueError, IndexError) as error:
        raise Unreadable(f"{path}: {error}") from error


def compare_json(path_a, path_b, *keys):
    a, b = read_json(path_a), read_json(path_b)
    differences, shown = [], []
    for spellings in (key.split("|") for key in keys):
        found = [next((values[s] for s in spellings if s in values), None) for values in (a, b)]
        if None in found:
            raise Unreadable(f"{path_a if found[0] is None else path_b}: no value {spellings[0]}")
        if found[0] != found[1]:
            differences.append(f"{spellings[0]}: {found[0]} against {found[1]}")
        shown.append(f"{spellings[0]} {found[0]}")
    return differences, ", ".join(shown)


def main(arguments):
    modes = {"checkpoints": compare_checkpoints, "tensors": compare_tensors, "logs": compare_logs, "json": compare_json}
    if len(arguments) < 3 or arguments[0] not in modes:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        differences, summary = modes[arguments[0]](*arguments[1:])
    except Unreadable as error:
        print(error)
        return 2
    print(summarize(differences) if differences else summary)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
