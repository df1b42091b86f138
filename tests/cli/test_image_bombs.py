#!/usr/bin/env python3
"""test_image_bombs.py: small files that need much memory or time, in every format: each is refused with a reason, or takes at most 400 MB
and 2 seconds, in `predict`, in training with four workers and in `data`; data.max_pixels; a packed dataset that is cut off while it is used."""
import os
import subprocess

from support import BIN, TINY_MODEL, check, cresnet, run
import bombs
import png

SANITIZED = bool(os.environ.get("CRESNET_SANITIZE"))
MEGABYTES, SECONDS = 400, 10  # of the processor: five times what they take, for slow machines
CONFIG = TINY_MODEL + "[data]\nkind=folder\nroot=set\nimage_size=32\nworkers=4\ndrop_last=no\n[train]\nbatch=8\nepochs=1\noutput=out\n"


def measured(*args):
    """Returns (exit status, output, megabytes at the peak, seconds of processor time)."""
    program = subprocess.Popen([BIN, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    said = program.stdout.read()
    _, status, usage = os.wait4(program.pid, 0)
    program.returncode = os.waitstatus_to_exitcode(status)
    return program.returncode, said, usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime


def small(name, megabytes, seconds):
    check(f"{name}: memory", SANITIZED or megabytes <= MEGABYTES, f"{megabytes:.0f} MB")
    check(f"{name}: time", SANITIZED or seconds <= SECONDS, f"{seconds:.2f} s")


def one_at_a_time(files):
    for name, decoded in files:
        status, said, megabytes, seconds = measured("predict", "first", f"bombs/{name}")
        small(name, megabytes, seconds)
        check(f"{name} is {'decoded' if decoded else 'refused'}", status == (0 if decoded else 1), said)
        check(f"{name}: the reason", decoded or f"bombs/{name}: " in said, said)


def reasons():
    for name, reason in (
        ("webp-lossless-16383.webp", "has 16383 x 16383 = 268402689 pixels; data.max_pixels allows 178956970"),
        ("webp-lossless-13377.webp", "a file of 32 bytes with 13377 x 13377 pixels, which takes 1194 MiB to decode"),
        ("jpeg-498-scans.jpg", "too many scans for a file of its size"),
        ("png-long.png", "at most 32768 per side"),
        ("png-after.png", "too much data after the last row"),
    ):
        said = measured("predict", "first", f"bombs/{name}")[1]
        check(f"reason of {name}", reason in said, said)
    for limit, status in ((16000000, 0), (15999999, 1)):
        for name in ("webp-lossless-4000.webp", "jpeg-arithmetic-4000.jpg"):
            got = measured("predict", "first", f"bombs/{name}", f"data.max_pixels={limit}")
            check(f"{name} with max_pixels = {limit}", got[0] == status, got)
            check("the limit is named", not status or "has 4000 x 4000 = 16000000 pixels; data.max_pixels allows 15999999" in got[1], got)
    got = measured("explain", "first", "bombs/png-tall.png", "data.max_pixels=32767", "-o", "map.png")
    check("explain", got[0] == 1 and "data.max_pixels allows 32767" in got[1], got)
    check("a limit above the highest", measured("predict", "first", "bombs/png-tall.png", "data.max_pixels=268435457")[0] == 2)


def together(files):
    """All files in one class of a dataset: the workers decode those above 32 MiB one at a time, and each other worker has one below."""
    most = MEGABYTES + 3 * 32
    refused = sum(not decoded for _, decoded in files)
    alone = ("webp-lossless-6000.webp", "jpeg-498-scans.jpg")
    os.makedirs("set/train/bombs"), os.makedirs("set/val/bombs")
    for name, _ in files:
        for split in ("train", "val") if name in alone else ("train",):
            os.link(f"bombs/{name}", f"set/{split}/bombs/{name}")
    status, said, megabytes, _ = measured("train", "set.ini")
    check("training", status == 0 and said.count("skipped an image: ") == refused + 1, said[-2000:])
    check("training: memory", SANITIZED or megabytes <= most, f"{megabytes:.0f} MB")
    status, said, megabytes, _ = measured("train", "set.ini", "data.corrupt=fatal", "train.output=fatal")
    check("data.corrupt = fatal", status == 1 and "set data.corrupt = skip to continue" in said and not os.path.exists("fatal/last"), said[-800:])
    for args in (("data", "stat", "set", "-j", "4"), ("data", "pack", "set.ini", "pack", "-j", "4")):
        status, said, megabytes, _ = measured(*args)
        check(f"{args[:2]}: memory", SANITIZED or megabytes <= most, f"{megabytes:.0f} MB")
        check(f"{args[:2]}: reasons", "jpeg-498-scans.jpg: " in said and "too many scans" in said, said[-2000:])
    status, said, megabytes, _ = measured("eval", "out", "data.kind=packed", "data.root=pack")
    check("packed bombs", status == 0 and (SANITIZED or megabytes <= MEGABYTES), (megabytes, said[-800:]))
    check("packed bombs are refused too", "data.max_pixels allows 1000000" in measured("eval", "out", "data.kind=packed", "data.root=pack", "data.max_pixels=1000000")[1])


def labels_of_their_own():
    """A list with several labels for an image takes images x classes bits: 3 MB of text would take 2.5 GB."""
    if SANITIZED:  # strict_string_checks reads the rest of the text at each line, for minutes
        return
    os.mkdir("square")
    for split, count in (("train", 145000), ("val", 2)):
        with open(f"square/{split}.csv", "w") as f:
            f.writelines(f"{i:x}.png,n{i:x}\n" for i in range(count))
    status, said, megabytes, _ = measured("train", "good.ini", "data.kind=csv", "data.root=square", "data.multi_label=yes")
    check("a square of labels", status != 0 and "train.csv: the labels of 145000 images in 145000 classes take 250" in said, (status, said[-600:]))
    check("a square of labels: memory", megabytes <= MEGABYTES, megabytes)


def main():
    files = []
    os.mkdir("bombs")
    for name, data, decoded in bombs.all_bombs():
        files.append((name, decoded))
        with open(f"bombs/{name}", "wb") as f:
            f.write(data)
    for split in ("train", "val"):
        os.makedirs(f"set/{split}/good"), os.makedirs(f"good/{split}/a"), os.makedirs(f"good/{split}/b")
        for i in range(16):
            png.write(f"set/{split}/good/{i}.png", 24, 24, lambda x, y: (x * 9, y * 9, i * 9))
            for name in "ab":
                os.link(f"set/{split}/good/{i}.png", f"good/{split}/{name}/{i}.png")
    for name in ("set", "good"):
        with open(f"{name}.ini", "w") as f:
            f.write(CONFIG.replace("root=set", f"root={name}"))
    first = cresnet("train", "good.ini", "-o", "first", "train.epochs=1")
    check("a network", first.returncode == 0, first.stderr)
    one_at_a_time(files)
    reasons()
    labels_of_their_own()
    together(files)


run(main)
