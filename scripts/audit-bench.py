#!/usr/bin/env python3
"""audit-bench.py: how many planted faults cresnet.audit() finds, and what it costs. Needs the extra cresnet[audit] and the built program ($CRESNET).

  scripts/audit-bench.py labels DATA [--seeds 1,2,3] [--images N] [--config INI] [section.key=value ...]
      replaces 5 % of the labels by a uniform other class, ranks all labels with 5 folds from random weights, and prints which part of the first 5 % of the
      ranking was replaced. DATA: a folder of images, or CIFAR-10 in its binary form (its training images); --images: a random part of them
  scripts/audit-bench.py duplicates DATA [--seed 1] [--count 500] [--upscale 96] [--keep DIR]
      plants near-duplicates (resized, recompressed, cropped by 5 %, brightness; a quarter each, then all four together), and prints how many are found.
      DIR gets the audit's page and strips.png, the pairs that are found but were not planted, to be looked at
  scripts/audit-bench.py size N
      audits N synthetic thumbnails of 48 pixels (no labels): time and memory
"""
import argparse
import csv
import os
import resource
import shutil
import sys
import tempfile
import time

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))
import cresnet
from cresnet._inspect.listing import list_images
from cresnet._inspect.reading import Reader
from cresnet._inspect.survey import survey
from PIL import Image, ImageEnhance

REPLACED = 0.05
KINDS = ("resized", "recompressed", "cropped", "brightness", "all four")


def write_list(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file", "label"), *rows])


# ---- labels ----

def replaced_labels(labels, classes, seed):
    """Labels of which 5 % are a uniform other class, and which ones."""
    random = np.random.default_rng(seed)
    chosen = random.choice(len(labels), round(REPLACED * len(labels)), replace=False)
    changed = labels.copy()
    changed[chosen] = (labels[chosen] + random.integers(1, classes, len(chosen))) % classes
    return changed, np.isin(np.arange(len(labels)), chosen)


def noisy_copy(listing, labels, places, folder):
    """A dataset of these images with these labels; returns the names that the audit gives them."""
    if listing.kind == "cifar10":
        reader, names = Reader(listing.root), []
        for number, part in enumerate(np.array_split(places, 5), 1):
            records = np.empty((len(part), 3073), np.uint8)
            records[:, 0] = labels[part]
            for row, place in enumerate(part):
                records[row, 1:] = np.asarray(reader.open(listing.files[place])).transpose(2, 0, 1).ravel()
            records.tofile(os.path.join(folder, f"data_batch_{number}.bin"))
            names += [f"data_batch_{number}.bin[{row}]" for row in range(len(part))]
        np.zeros((1, 3073), np.uint8).tofile(os.path.join(folder, "test_batch.bin"))  # the audit looks at the training images
        return names
    names = [os.path.abspath(os.path.join(listing.root, listing.files[place])) for place in places]
    write_list(os.path.join(folder, "train.csv"), [(name, listing.classes[labels[place]]) for name, place in zip(names, places)])
    return names


def bench_labels(options):
    keys = dict(text.replace(".", "_", 1).split("=", 1) for text in options.keys)
    shares = []
    for seed in map(int, options.seeds.split(",")):
        listing = list_images(options.data)
        places = np.flatnonzero(listing.splits == 0) if listing.kind == "cifar10" else np.arange(len(listing))
        if options.images:
            places = np.sort(np.random.default_rng(0).permutation(places)[:options.images])
        labels, wrong = listing.labels.copy(), np.zeros(len(listing), bool)
        labels[places], wrong[places] = replaced_labels(listing.labels[places], len(listing.classes), seed)
        with tempfile.TemporaryDirectory() as folder:
            data, begin = os.path.join(folder, "data"), time.monotonic()
            os.mkdir(data)
            planted = {name for name, place in zip(noisy_copy(listing, labels, places, data), places) if wrong[place]}
            cresnet.audit(data, output=os.path.join(folder, "audit"), config=options.config, seed=seed, progress=not options.quiet, **keys)
            with open(os.path.join(folder, "audit", "ranking.csv"), encoding="utf-8", newline="") as file:
                ranking = list(csv.DictReader(file))
        first = ranking[:round(REPLACED * len(places))]
        hits = sum(row["file"] in planted for row in first)
        flagged = [row for row in ranking if row["wrong"] == "1"]
        shares.append(hits / len(first))
        print(f"seed {seed}: {hits} of the first {len(first)} of {len(places)} were replaced: {100 * shares[-1]:.2f} %; of {len(flagged)} called wrong "
              f"{sum(row['file'] in planted for row in flagged)}; {time.monotonic() - begin:.0f} s", flush=True)
    print(f"mean of {len(shares)} seeds: {100 * np.mean(shares):.2f} %")


# ---- duplicates ----

def changed(image, kind, random, path):
    """Writes a near-duplicate as JPEG."""
    quality = 92
    width, height = image.size
    if kind in ("cropped", "all four"):  # 5 % of each side is cut off
        left, top = random.uniform(0, 0.05 * width), random.uniform(0, 0.05 * height)
        image = image.crop((round(left), round(top), round(left + 0.95 * width), round(top + 0.95 * height)))
    if kind in ("resized", "all four"):
        scale = random.uniform(0.5, 0.9)
        image = image.resize((max(8, round(scale * image.width)), max(8, round(scale * image.height))), Image.BICUBIC)
    if kind in ("brightness", "all four"):
        image = ImageEnhance.Brightness(image).enhance(random.choice([random.uniform(0.6, 0.9), random.uniform(1.1, 1.4)]))
    if kind in ("recompressed", "all four"):
        quality = int(random.integers(30, 71))
    image.save(path, quality=quality)


def upscaled(listing, size, folder):
    """CIFAR as JPEG files of `size` pixels; returns (path, label) of each image."""
    reader, rows = Reader(listing.root), []
    for place, name in enumerate(listing.files):
        path = os.path.join(folder, str(place // 1000), f"{place}.jpg")
        if place % 1000 == 0:
            os.makedirs(os.path.dirname(path))
        reader.open(name).resize((size, size), Image.BICUBIC).save(path, quality=95)
        rows.append((path, listing.label(place)))
    return rows


def bench_duplicates(options):
    listing, random = list_images(options.data), np.random.default_rng(options.seed)
    keep = os.path.abspath(options.keep or tempfile.mkdtemp())
    data = os.path.join(keep, "data")
    shutil.rmtree(data, ignore_errors=True)
    os.makedirs(os.path.join(data, "planted"))
    if listing.kind.startswith("cifar"):
        rows = upscaled(listing, options.upscale, os.path.join(data, "upscaled"))
    else:
        rows = [(os.path.abspath(os.path.join(listing.root, name)), listing.label(place)) for place, name in enumerate(listing.files)]
    sources, planted = random.choice(len(rows), 2 * options.count, replace=False), []
    for number, place in enumerate(sources):
        kind = KINDS[number % 4] if number < options.count else KINDS[4]
        path = os.path.join(data, "planted", f"{number}.jpg")
        with Image.open(rows[place][0]) as image:
            changed(image.convert("RGB"), kind, random, path)
        planted.append((path, rows[place][1]))
    for title, part in (("one change each", slice(0, options.count)), ("all four changes", slice(options.count, None))):
        write_list(os.path.join(data, "train.csv"), rows + planted[part])
        begin = time.monotonic()
        found = survey(data, None, os.path.join(keep, "audit"), 0, None, 1, 0, lambda line: None, {})
        seconds = time.monotonic() - begin
        place = {name: index for index, name in enumerate(found.listing.files)}
        group = {index: number for number, (members, _) in enumerate(found.groups) for index in members}
        first = {place[path]: place[rows[source][0]] for (path, _), source in zip(planted[part], sources[part])}
        hit = {copy: group.get(copy, -1) == group.get(source, -2) for copy, source in first.items()}
        kinds = [KINDS[number % 4] for number in range(options.count)] if part.start == 0 else [KINDS[4]] * options.count
        each = {kind: [ok for ok, of in zip(hit.values(), kinds) if of == kind] for kind in dict.fromkeys(kinds)}
        others = [(int(a), int(b), float(s)) for (a, b), s in zip(found.pairs, found.similarity) if first.get(int(b), -1) != a and first.get(int(a), -1) != b]
        print(f"{title}: {sum(hit.values())} of {len(hit)} found (" + ", ".join(f"{kind} {sum(ok)} of {len(ok)}" for kind, ok in each.items()) +
              f"); {len(found.pairs)} pairs among {len(found.listing)} images, {len(others)} not planted; {seconds:.0f} s", flush=True)
        if part.start == 0:
            draw_pairs(found, sorted(others, key=lambda pair: pair[2]), os.path.join(keep, "strips"))
    print(f"pairs that were not planted, the least similar first: {keep}/strips-0.png ...")


def draw_pairs(found, pairs, path, side=96, columns=6, rows=10):
    for sheet in range(0, len(pairs), columns * rows):
        canvas = Image.new("RGB", (columns * (2 * side + 12), rows * (side + 8)), "white")
        for at, (a, b, _) in enumerate(pairs[sheet:sheet + columns * rows]):
            for right, index in enumerate((a, b)):
                image = found.reader.open(found.listing.files[index]).resize((side, side))
                canvas.paste(image, (at % columns * (2 * side + 12) + right * side, at // columns * (side + 8)))
        canvas.save(f"{path}-{sheet // (columns * rows)}.png")


# ---- size ----

def bench_size(options):
    folder, random = tempfile.mkdtemp(), np.random.default_rng(1)
    for index in range(options.images):
        if index % 1000 == 0:
            os.makedirs(os.path.join(folder, f"class-{index // 1000:04d}"))
        side = int(random.integers(5, 13))
        pixels = random.integers(0, 256, (side, side, 3), np.uint8)
        Image.fromarray(pixels).resize((48, 48), Image.BICUBIC).save(os.path.join(folder, f"class-{index // 1000:04d}", f"{index}.jpg"), quality=85)
    begin, cpu = time.monotonic(), time.process_time()
    output = os.path.join(folder, "audit-page")
    result = cresnet.audit(folder, output=output, folds=0)
    print(f"{options.images} images: {time.monotonic() - begin:.0f} s, {time.process_time() - cpu:.0f} s of CPU time, "
          f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB at most, {len(result.of('duplicate'))} images in groups of duplicates")
    shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    labels = commands.add_parser("labels")
    labels.add_argument("data")
    labels.add_argument("keys", nargs="*", default=[])
    labels.add_argument("--seeds", default="1,2,3")
    labels.add_argument("--images", type=int, default=0)
    labels.add_argument("--config")
    labels.add_argument("--quiet", action="store_true")
    duplicates = commands.add_parser("duplicates")
    duplicates.add_argument("data")
    for name, value in (("--seed", 1), ("--count", 500), ("--upscale", 96)):
        duplicates.add_argument(name, type=int, default=value)
    duplicates.add_argument("--keep")
    size = commands.add_parser("size")
    size.add_argument("images", type=int)
    options, rest = parser.parse_known_args()  # keys may follow options
    if any(text.startswith("-") for text in rest) or (rest and options.command != "labels"):
        parser.error(f"unknown arguments: {' '.join(rest)}")
    if options.command == "labels":
        options.keys += rest
    {"labels": bench_labels, "duplicates": bench_duplicates, "size": bench_size}[options.command](options)


if __name__ == "__main__":
    main()
