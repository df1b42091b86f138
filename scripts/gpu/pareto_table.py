#!/usr/bin/env python3
"""pareto_table.py WORK [SEEDS]: joins what pareto.sh has measured in WORK/speed and WORK/results into WORK/pareto.jsonl, one line for each network and
precision, and prints them as a table with the Pareto fronts.

A line has the keys data (cifar10 or photos), network, pattern, precision, trained (whether the network whose speed was measured had trained weights),
images_per_s (by batch size), correct (of each seed), images, top1 (mean, in percent) and front (the batch sizes at which the network is on the
Pareto front: no other network is both as fast and as accurate, and better in one of the two). Values that are not measured are missing.
"""
import json
import sys
from pathlib import Path

PRECISIONS = ("fp32", "fp16", "int8")
FAMILY = {"resnet20": "ResNet-20", "resnet32": "ResNet-32", "resnet44": "ResNet-44", "dense": "ResNet-56", "control": "ResNet-56"}


def describe(name):
    """(data, network, pattern, name of its speed) of a result's name without its seed."""
    if name.startswith("photos-"):
        pattern = {"dense": "dense", "control": "dense, further epochs", "channels": "channels, 2x", "block": "blocks 64x64, 80 %"}[name[7:]]
        return "photos", "ResNet-50", pattern, "photos-dense" if name == "photos-control" else name
    if name in FAMILY:
        return "cifar10", FAMILY[name], "dense, further epochs" if name == "control" else "dense", "dense" if name == "control" else name
    kind, _, value = name.partition("-")
    factor, _, multiple = value.partition("m")
    pattern = {"channels": f"channels, {factor}x fewer multiply-adds" + (f", multiples of {multiple}" if multiple else ""),
               "speedup": f"channels, {value}x by time", "2": "2:4",
               "blocks": f"blocks {value}, 80 %", "weights": f"single weights, {value} %"}[kind]
    return "cifar10", "ResNet-56", pattern, name


def read_text(path):
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def is_result(path):
    return not path.name.endswith((".part", ".trained"))


def speeds(work, name, precision):
    found, trained = {}, False
    for path in sorted((work / "speed").glob(f"{name}-{precision}-*")):
        if not is_result(path) or not read_text(path):
            continue
        found[path.name.rsplit("-", 1)[1]] = json.loads(read_text(path).splitlines()[-1])["images_per_s"]
        trained = read_text(path.parent / f"{path.name}.trained") == "yes"
    return found, trained


def rows(work, seeds):
    names = {path.name.rsplit("-", 2)[0] for path in (work / "speed").iterdir() if is_result(path)}
    names |= {path.name.rsplit("-s", 1)[0] for path in (work / "results").iterdir() if is_result(path) and "-s" in path.name}
    for name in sorted(names):
        data, network, pattern, speed = describe(name)
        for precision in PRECISIONS:
            images_per_s, trained = speeds(work, speed, precision)
            row = {"data": data, "network": network, "pattern": pattern, "precision": precision, "trained": trained, "images_per_s": images_per_s}
            correct = [read_text(work / "results" / f"{name}-s{seed}-{precision}") for seed in seeds]
            if all(correct):
                images = int(read_text(work / "results" / f"{name}-s{seeds[0]}-images") or 10000)
                row.update(correct=[int(c) for c in correct], images=images, top1=round(100 * sum(map(int, correct)) / len(correct) / images, 3))
            if images_per_s or all(correct):
                yield row


def beats(other, row, batch):
    """Whether `other` is better in one respect and not worse in the other; speeds within 1 % are equal."""
    speed, other_speed = row["images_per_s"][batch], other["images_per_s"].get(batch, 0)
    return (other["top1"] > row["top1"] and other_speed >= 0.99 * speed) or (other["top1"] >= row["top1"] and other_speed > 1.01 * speed)


def add_fronts(table):
    """Adds `front` to every row with accuracy and speed: compared with the rows of the same data and precision."""
    for row in table:
        others = [r for r in table if (r["data"], r["precision"]) == (row["data"], row["precision"]) and "top1" in r]
        if "top1" in row:
            row["front"] = [batch for batch in row["images_per_s"] if not any(beats(other, row, batch) for other in others)]


def kind_of(row):
    """The pattern without its numbers."""
    return row["pattern"].split(",")[0].split()[0].replace("single", "single weights")


def print_fronts(table):
    """For each precision and batch size: the networks on the Pareto front, and the patterns without a network on it."""
    for data, precision in dict.fromkeys((row["data"], row["precision"]) for row in table):
        rows_here = [row for row in table if (row["data"], row["precision"]) == (data, precision) and "front" in row]
        for batch in sorted({batch for row in rows_here for batch in row["images_per_s"]}, key=int, reverse=True):
            front = sorted((row for row in rows_here if batch in row["front"]), key=lambda row: row["images_per_s"][batch])
            never = sorted({kind_of(row) for row in rows_here} - {kind_of(row) for row in front})
            print(f"{data}, {precision}, batch {batch}: on the Pareto front: {'; '.join(row['network'] + ' ' + row['pattern'] for row in front)}. "
                  f"Patterns without a network on it: {', '.join(never) or 'none'}.")


def main():
    work, seeds = Path(sys.argv[1]), (sys.argv[2] if len(sys.argv) > 2 else "1").split()
    table = sorted(rows(work, seeds), key=lambda r: (r["data"], PRECISIONS.index(r["precision"]), r["pattern"] != "dense", r["network"], r["pattern"]))
    add_fronts(table)
    (work / "pareto.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table), encoding="utf-8")
    print("| data, precision | network | pattern | top-1, % | images/s by batch size | front |\n|---|---|---|---:|---|---|")
    for row in table:
        speed = ", ".join(f"{batch}: {value:,.0f}" for batch, value in sorted(row["images_per_s"].items(), key=lambda x: -int(x[0])))
        top1 = f"{row['top1']:.2f}" if "top1" in row else ""
        print(f"| {row['data']}, {row['precision']} | {row['network']} | {row['pattern']} | {top1} | {speed} | {', '.join(row.get('front', []))} |")
    print()
    print_fronts(table)


if __name__ == "__main__":
    main()
