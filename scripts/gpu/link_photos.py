#!/usr/bin/env python3
"""link_photos.py PHOTOS OUT TRAIN VAL [CLASSES]: a folder dataset of TRAIN and VAL images in CLASSES (1000) classes from a few photos.

The JPEG files of the folder PHOTOS are copied to OUT/photos, which also puts them into the page cache, and linked in turn to all names of OUT/train and
OUT/val. The links are hard links: each name is a regular file, so that cresnet stores the list of the folder. Files of an earlier call are kept."""
import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor

LINKS = 30000  # names of a copy; ext4 allows 65,000 hard links of a file


def link_class(split, k, images, classes, copies):
    folder = f"{split}/c{k:03d}"
    os.makedirs(folder, exist_ok=True)
    if len(os.listdir(folder)) == len(range(k, images, classes)):
        return
    for i in range(k, images, classes):
        try:
            os.link(copies[i % len(copies)], f"{folder}/{i:07d}.jpeg")
        except FileExistsError:
            pass


def main():
    photos, out, train, val = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    classes = int(sys.argv[5]) if len(sys.argv) > 5 else 1000
    sources = sorted(os.path.join(d, f) for d, _, files in os.walk(photos) for f in files if f.lower().endswith((".jpg", ".jpeg")))
    if not sources:
        sys.exit(f"link_photos.py: error: no JPEG files in {photos}")
    os.makedirs(f"{out}/photos", exist_ok=True)
    copies = []
    for i in range(len(sources) * max(1, -(-(train + val) // (LINKS * len(sources))))):
        copies.append(f"{out}/photos/{i:05d}.jpeg")
        if not os.path.exists(copies[-1]):
            shutil.copyfile(sources[i % len(sources)], copies[-1])
    with ProcessPoolExecutor(min(16, len(os.sched_getaffinity(0)))) as pool:
        jobs = [pool.submit(link_class, f"{out}/{split}", k, images, classes, copies) for split, images in (("train", train), ("val", val)) for k in range(classes)]
        for job in jobs:
            job.result()
    print(f"{len(sources)} photos, {len(copies)} copies, {train} and {val} names in {classes} classes")


if __name__ == "__main__":
    main()
