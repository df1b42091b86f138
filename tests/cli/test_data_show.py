#!/usr/bin/env python3
"""test_data_show.py: `cresnet data show`: the pixels of the page are those of the images after the changes that the configuration asks for,
computed here; the classes are written below; the same seed gives the same page; files of others stay."""
import os

from support import check, cresnet, ends, good, run
import png

SIDE, ZOOM, GAP = 32, 4, 8
CELL = SIDE * ZOOM
STRIP = 11  # a line of text


def cells(width, height, pixels, columns):
    """(pixels of the image, pixels of the text below) of each cell of a page, in reading order."""
    at = lambda x, y: pixels[y * width + x]
    out = []
    for y0 in range(GAP, height - CELL, CELL + STRIP + GAP):
        for k in range(columns):
            x0 = GAP + k * (CELL + GAP)
            image = [at(x0 + ZOOM * x, y0 + ZOOM * y) for y in range(SIDE) for x in range(SIDE)]
            check("pixels are squares", all(at(x0 + x, y0 + y) == image[y // ZOOM * SIDE + x // ZOOM] for y in range(0, CELL, 3) for x in range(CELL)))
            out.append((image, tuple(at(x0 + x, y0 + CELL + y) for y in range(STRIP) for x in range(CELL))))
    return out


def show(name, *options):
    good("data show", "data", "show", "set", "-o", name, "data.image_size=%d" % SIDE, "data.val_fraction=0.2", *options)
    return cells(*png.read(name), 4)


def mirrored(image):
    return [image[y * SIDE + SIDE - 1 - x] for y in range(SIDE) for x in range(SIDE)]


def main():
    known = {}
    for c, name in enumerate(("ape", "bee")):
        os.makedirs(f"set/{name}")
        for i in range(10):
            image = png.write(f"set/{name}/{i}.png", SIDE, SIDE, lambda x, y: (c * 200 + 5 * i, 8 * x, 8 * y))
            known[tuple(map(tuple, image))] = name
    plain = ("train.batch=16", "data.crop=none", "data.hflip=0")

    page = show("plain.png", *plain)
    check("sixteen images", len(page) == 16 and len({tuple(image) for image, _ in page}) == 16)
    check("they are of the dataset", all(tuple(image) in known for image, _ in page))
    texts = {}
    for image, text in page:
        texts.setdefault(known[tuple(image)], set()).add(text)
    check("one text for each class", all(len(t) == 1 for t in texts.values()) and len(set.union(*texts.values())) == 2, texts.keys())

    flips = show("flip.png", "train.batch=16", "data.crop=none", "data.hflip=1")
    check("mirrored, in the same order", [mirrored(image) for image, _ in flips] == [image for image, _ in page])

    for image, _ in show("erase.png", *plain, "data.erase=1", "data.mean=0.2,0.4,0.6"):
        changed = [p for p in image if p == (51, 102, 153)]
        check("erased with the mean", len(changed) >= 0.02 * SIDE * SIDE, len(changed))
    for image, text in show("cut.png", *plain, "data.cutmix=1"):
        sources = {p[0] for p in image}
        check("two images in one", len(sources) <= 2, sources)

    for image, _ in show("pad.png", "train.batch=16", "data.crop=pad", "data.pad=4", "data.hflip=0"):
        kept = [(x, y) for y in range(SIDE) for x in range(SIDE) if image[y * SIDE + x] != (0, 0, 0)]
        check("shifted by at most four", len(kept) >= 28 * 28 - 1, len(kept))
    show("again.png", *plain)
    show("other.png", *plain, "--seed", "5")
    read = lambda name: open(name, "rb").read()
    check("the same page again", read("again.png") == read("plain.png"))
    check("another seed, another page", read("other.png") != read("plain.png"))

    png.write("mine.png", 2, 2, lambda x, y: (0, 0, 0))
    mine = read("mine.png")
    ran = cresnet("data", "show", "set", "-o", "mine.png", "data.val_fraction=0.2")
    check("a foreign file stays", ran.returncode == 2 and read("mine.png") == mine and "--force" in ran.stderr, ran.stderr)
    check("--force", cresnet("data", "show", "set", "-o", "mine.png", "--force", "data.val_fraction=0.2").returncode == 0 and read("mine.png") != mine)
    check("an output is needed", "add -o PAGE.png" in cresnet("data", "show", "set").stderr)
    check("other words have no -o", "-o is for cresnet data show" in cresnet("data", "stat", "set", "-o", "x.png").stderr)
    for name, options in (("grey", ("data.channels=1",)), ("deep", ("data.channels=4", "data.bits=16", "data.mixup=0.5"))):
        ends(name, 0, [], "data", "show", "set", "-o", f"{name}.png", "data.val_fraction=0.2", *options)


run(main)
