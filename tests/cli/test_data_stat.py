#!/usr/bin/env python3
"""test_data_stat.py: `cresnet data stat` and `data verify` on a folder of known images: counts, sizes, mean and
standard deviation computed here from the same pixels, planted copies (within a split, across, with another label) and planted
damage, which is named."""
import json
import os
import random
import shutil

from support import check, cresnet, ends, good, run
import png


def main():
    draw = random.Random(4)
    sums = {}
    for split, counts in (("train", {"ape": 5, "bee": 3}), ("val", {"ape": 2, "bee": 4})):
        images = []
        for name, count in counts.items():
            os.makedirs(f"set/{split}/{name}")
            for i in range(count):
                size = draw.choice([(6, 4), (9, 9), (3, 11), (20, 5)])
                base = [draw.randrange(256) for _ in range(3)]
                images.append((size, png.write(f"set/{split}/{name}/{i}.png", *size, lambda x, y: [(b + 7 * x + 3 * y) % 256 for b in base])))
        sums[split] = images

    ran = good("stat", "data", "stat", "set", "--json", "-j", "3")
    found = json.loads(ran.stdout or "{}")
    for split, classes in (("train", [("ape", 5), ("bee", 3)]), ("val", [("ape", 2), ("bee", 4)])):
        got = found[split]
        check("classes", [(c["class"], c["images"]) for c in got["classes"]] == classes and got["images"] == sum(n for _, n in classes), got)
        for side, name in enumerate(("width", "height")):
            sides = sorted(size[side] for size, _ in sums[split])
            check("sizes", got[name] == {"min": sides[0], "median": sides[len(sides) // 2], "max": sides[-1]}, (got[name], sides))
        for c in range(3):
            means = [sum(p[c] / 255 for p in pixels) / len(pixels) for _, pixels in sums[split]]
            squares = [sum((p[c] / 255) ** 2 for p in pixels) / len(pixels) for _, pixels in sums[split]]
            mean = sum(means) / len(means)
            check("mean", abs(got["mean"][c] - mean) < 2e-6, (got["mean"], mean))
            check("std", abs(got["std"][c] - (sum(squares) / len(squares) - mean * mean) ** 0.5) < 2e-6, got["std"])
        check("all readable", got["unreadable"] == [])
    check("no copies", found["duplicates"] == 0, found)
    check("workers change nothing", cresnet("data", "stat", "set", "--json", "-q", "-j", "1").stdout == ran.stdout)
    ends("a good dataset", 0, ["14 images read, 0 of them unreadable", "no duplicates"], "data", "verify", "set", "-q")

    shutil.copy("set/train/ape/0.png", "set/train/ape/copy.png")      # within a split
    shutil.copy("set/train/ape/1.png", "set/val/ape/leak.png")        # in validation too
    shutil.copy("set/train/ape/2.png", "set/val/bee/mislabelled.png")  # there, with another label
    png.write("set/train/bee/turned.png", 4, 6, lambda x, y: (x * 50, y * 40, 0))
    png.write("set/train/bee/wide.png", 6, 4, lambda x, y: ((y * 6 + x) % 4 * 50, (y * 6 + x) // 4 * 40, 0))  # the same bytes, another shape
    found = json.loads(cresnet("data", "stat", "set", "--json", "-q").stdout)
    check("copies", (found["duplicates"], found["duplicates_across_splits"], found["duplicates_with_other_label"]) == (3, 2, 1), found)
    ran = cresnet("data", "stat", "set", "-q")
    for line in ("set/train/ape/0.png (train) = set/train/ape/copy.png (train)\n", "set/train/ape/1.png (train) = set/val/ape/leak.png (val)\n",
                 "set/train/ape/2.png (train) = set/val/bee/mislabelled.png (val), other label\n"):
        check("copies are named", line in ran.stdout, ran.stdout)
    ends("copies are no damage", 0, "3 duplicate images", "data", "verify", "set", "-q")

    with open("set/val/ape/0.png", "r+b") as f:
        f.truncate(40)
    open("set/train/bee/text.jpg", "w").write("no image")
    for workers in ("1", "4"):
        ran = ends("damage", 1, ["2 of them unreadable", "failed verification"], "data", "verify", "set", "-q", "-j", workers)
        lines = [line for line in ran.stdout.splitlines() if line.startswith("unreadable: ")]
        check("damage is named", len(lines) == 2 and "set/train/bee/text.jpg" in lines[0] and "set/val/ape/0.png" in lines[1], lines)
    ran = cresnet("data", "verify", "set", "--json", "-q")
    found = json.loads(ran.stdout)
    check("damage as JSON", ran.returncode == 1 and not found["ok"] and [b["image"] for b in found["val"]["unreadable"]] == ["set/val/ape/0.png"], found)
    found = json.loads(cresnet("data", "stat", "set", "--json", "-q").stdout)
    check("stat leaves out what cannot be read", found["train"]["images"] == 12 and sum(c["images"] for c in found["train"]["classes"]) == 11, found)

    ran = cresnet("data", "stat", "set/train", "-q")
    check("a folder without validation", ran.returncode == 0 and "val " not in ran.stdout.split("label")[0], ran)
    check("nothing given", cresnet("data", "stat").returncode == 2)
    ends("nowhere", 2, "nowhere", "data", "stat", "nowhere")
    ends("no such configuration", 2, "nowhere.ini", "data", "verify", "nowhere.ini")


run(main)
