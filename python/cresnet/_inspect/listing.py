"""cresnet._inspect.listing: the images of a dataset, by the names that data.exclude and data.labels use."""
from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._errors import ArgumentError

_TRAIN = ("train", "training")
_VAL = ("val", "valid", "validation", "eval", "evaluation", "test", "testing")
_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass
class Listing:
    """All images of a dataset."""
    #: The folder, as it was given.
    root: str
    #: folder, csv, cifar10 or cifar100.
    kind: str
    #: [N] names relative to root, with /.
    files: list[str]
    #: [N] places in classes.
    labels: npt.NDArray[np.int32]
    #: [N] places in split_names.
    splits: npt.NDArray[np.int8]
    classes: list[str]
    #: ["train", "val"], or [""] for a folder without splits.
    split_names: list[str]

    def __len__(self) -> int:
        return len(self.files)

    def label(self, index: int) -> str:
        """The name of the class of an image."""
        return self.classes[int(self.labels[index])]

    def split(self, index: int) -> str:
        return self.split_names[int(self.splits[index])]


def list_images(root: str) -> Listing:
    """Lists a folder with a folder for each class, train/ and val/ with such folders, train.csv and val.csv, or CIFAR in its binary form. Raises
    ArgumentError for another folder, and for one class alone."""
    if not os.path.isdir(root):
        raise ArgumentError(f"{root}: " + ("is a file: name the folder of the images" if os.path.exists(root) else "no such folder"), "argument")
    found = splits(root)
    if os.path.exists(os.path.join(root, "data_batch_1.bin")) or os.path.exists(os.path.join(root, "train.bin")):
        listing = _cifar(root)
    elif found:
        listing = _listing(root, "folder", [(name, list(class_images(root, name))) for name in found])
    elif os.path.exists(os.path.join(root, "train.csv")):
        listing = _listing(root, "csv", [(name, _list(root, name)) for name in ("train", "val") if os.path.exists(os.path.join(root, f"{name}.csv"))])
    else:
        listing = _listing(root, "folder", [("", list(class_images(root, "")))])
    if len(listing.classes) < 2:
        raise ArgumentError(f"{root}: {len(listing)} images of {len(listing.classes) or 'no'} class: give a folder with a folder of images for each of at least "
                            "two classes, or with train.csv", "argument")
    return listing


def splits(root: str) -> list[str]:
    """The folders of the training and of the validation images, as the program finds them: Train or Test alone may be a class."""
    folders = sorted((entry for entry in os.scandir(root) if _is_folder(entry)), key=lambda entry: entry.name, reverse=True)
    exact = {entry.name: entry.name for entry in folders}
    train, val = (next((name for name in names if name in exact), None) for names in (_TRAIN, _VAL))
    if not train or not val:
        any_case = {entry.name.lower(): entry.name for entry in folders if any(_is_folder(inner) for inner in os.scandir(entry.path))}
        pair = [name or next((any_case[key] for key in names if key in any_case), None) for name, names in ((train, _TRAIN), (val, _VAL))]
        train, val = pair if all(pair) else (train, val)
    return [name for name in (train, val) if name] if train else []


def class_images(root: str, split: str) -> Iterator[tuple[str, str]]:
    """The images in root/split/CLASS/, each as its name relative to root and its class."""
    base = os.path.join(root, split)
    above = [_identity(base)]
    for label in sorted(entry.name for entry in os.scandir(base) if _is_folder(entry) and not entry.name.startswith(".")):
        for path in _walk(os.path.join(base, label), os.path.realpath(base), above):
            yield os.path.relpath(path, root).replace(os.sep, "/"), label


def _walk(folder: str, root: str, above: list[tuple[int, int]]) -> Iterator[str]:
    """The images in a folder and in those below it, without hidden ones, broken links and pipes. As in the program, links are followed, except to a
    folder that contains them or root."""
    above = [*above, _identity(folder)]
    entries = sorted((entry for entry in os.scandir(folder) if not entry.name.startswith(".")), key=lambda entry: entry.name)
    yield from (entry.path for entry in entries if entry.name.lower().endswith(_SUFFIXES) and os.path.isfile(entry.path))
    for entry in filter(_is_folder, entries):
        outside = not entry.is_symlink() or os.path.commonpath([root, target := os.path.realpath(entry.path)]) != target
        if outside and _identity(entry.path) not in above:
            yield from _walk(entry.path, root, above)


def _identity(folder: str) -> tuple[int, int]:
    info = os.stat(folder)
    return info.st_dev, info.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return os.path.isdir(entry.path)  # entry.is_dir() raises OSError for a link to itself


def _list(root: str, split: str) -> list[tuple[str, str]]:
    path = os.path.join(root, f"{split}.csv")
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = [[field.strip() for field in row] for row in csv.reader(file) if row]
    for line, row in enumerate(rows, 1):
        if len(row) != 2 or not all(row):
            raise ArgumentError(f"{path}: row {line} has not two fields, file and label", "argument")
    if rows and (rows[0][1].lower() in ("label", "labels", "class") or not any(c in rows[0][0] for c in "./")):
        del rows[0]
    gone = [name for name, _ in rows if not os.path.exists(os.path.join(root, name))]
    if gone:
        raise ArgumentError(f"{path}: {len(gone)} of {len(rows)} files do not exist, the first one is {gone[0]}", "argument")
    return [(name, label) for name, label in rows]


def _listing(root: str, kind: str, splits: list[tuple[str, list[tuple[str, str]]]]) -> Listing:
    classes = sorted({label for _, images in splits for _, label in images}, key=os.fsencode)
    places = {label: place for place, label in enumerate(classes)}
    return Listing(root, kind, [name for _, images in splits for name, _ in images],
                   np.array([places[label] for _, images in splits for _, label in images], np.int32),
                   np.repeat(np.arange(len(splits), dtype=np.int8), [len(images) for _, images in splits]), classes, [name for name, _ in splits])


def _cifar(root: str) -> Listing:
    ten = os.path.exists(os.path.join(root, "data_batch_1.bin"))
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"] if ten else ["train.bin", "test.bin"]
    files: list[str] = []
    labels, splits = [], []
    for name in names:
        path = os.path.join(root, name)
        if not os.path.exists(path):
            continue
        records = np.fromfile(path, np.uint8)
        record = 3073 if ten else 3074
        if len(records) % record:
            raise ArgumentError(f"{path}: {len(records)} bytes are no records of CIFAR of {record} bytes", "argument")
        labels.append(records.reshape(-1, record)[:, record - 3073].astype(np.int32))
        files += [f"{name}[{index}]" for index in range(len(labels[-1]))]
        splits.append(np.full(len(labels[-1]), name.startswith("test"), np.int8))
    return Listing(root, "cifar10" if ten else "cifar100", files, np.concatenate(labels), np.concatenate(splits), _cifar_classes(root, ten), ["train", "val"])


def _cifar_classes(root: str, ten: bool) -> list[str]:
    path = os.path.join(root, "batches.meta.txt" if ten else "fine_label_names.txt")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            return file.read().split()
    return list(_CIFAR10) if ten else [str(label) for label in range(100)]
