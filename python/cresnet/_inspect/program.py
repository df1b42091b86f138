"""cresnet._inspect.program: features and probabilities that the program computes."""
from __future__ import annotations

import configparser
import csv
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._arguments import arguments, operand
from .._child import call
from .._errors import ArgumentError, PathLike
from .._model import Model
from .listing import list_images
from .reading import Reader

Floats = npt.NDArray[np.float32]
_BATCH = 256  # images of the library


@dataclass
class Predictions:
    """A table of `cresnet eval --csv`. Images that could not be read are left out."""
    files: list[str]
    #: Names of the classes, in the order of the network.
    classes: list[str]
    #: [N] true classes.
    labels: npt.NDArray[np.int32]
    #: [N, classes]
    probabilities: Floats


def predictions(run: str, split: str = "val", **keys: object) -> Predictions:
    """The probabilities of all images of a split of the run's dataset."""
    with tempfile.TemporaryDirectory(prefix="cresnet-") as folder:
        path = os.path.join(folder, "predictions.csv")
        call(["eval", operand(run), "--quiet", f"--csv={path}", *arguments("eval", {**keys, "split": split})])
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return _table(path, csv.reader(file))


def _plain(name: str) -> str:
    """A name without the mark that keeps a spreadsheet from reading it as a formula."""
    return name[1:] if name.startswith("'") and name[1:2] in ("=", "+", "-", "@", "\t", "\r") else name


def _table(path: str, rows: Iterator[list[str]]) -> Predictions:
    head = next(rows, [])
    if "label" not in head:
        raise ArgumentError(f"{path}: no table of one label for each image: networks with several labels are not supported", "argument")
    begin, label = next((place for place, name in enumerate(head) if name.startswith("p:")), len(head)), head.index("label")
    files, labels, probabilities = [], [], []
    for row in rows:
        if row[begin]:
            files.append(row[0])
            labels.append(int(row[label]))
            probabilities.append(np.array(row[begin:], np.float32))
    if not files:
        raise ArgumentError("no image could be read", "argument")
    return Predictions(files, [_plain(name[2:]) for name in head[begin:]], np.array(labels, np.int32), np.stack(probabilities))


def stored_setting(run: str, section: str, key: str) -> str:
    """A value of the configuration that is stored in a run folder or checkpoint; empty when it has none."""
    for name in ("best/config.ini", "last/config.ini", "config.ini"):
        settings = configparser.ConfigParser(interpolation=None, strict=False, inline_comment_prefixes=(";",))
        if settings.read(os.path.join(run, name), encoding="utf-8"):
            return settings.get(section, key, fallback="").strip('"')
    return ""


@dataclass
class Features:
    """What `cresnet features` has written about N images. The arrays are mapped from their files, which may be gone."""
    files: list[str]
    #: [N, features]
    features: Floats

    @classmethod
    def load(cls, path: str) -> "Features":
        """x.npy and x.csv. ArgumentError where they do not belong together."""
        try:
            rows = np.load(path, mmap_mode="r")
            with open(path[:-len(".npy")] + ".csv", encoding="utf-8", errors="surrogateescape", newline="") as file:
                names = [row["file"] for row in csv.DictReader(file)]
        except (OSError, ValueError, KeyError) as error:
            raise ArgumentError(f"{path}: no features of cresnet features: {error}", "argument") from None
        if rows.ndim != 2 or len(rows) != len(names):
            raise ArgumentError(f"{path}: the features are {list(rows.shape)}, but the table names {len(names)} images", "argument")
        return cls(names, rows)


def features(run: PathLike, root: str) -> Features:
    """The pooled features of all images of a dataset, with the names of list_images()."""
    listing = list_images(root)
    if listing.kind.startswith("cifar"):  # cresnet features reads folders and lists
        reader = Reader(root)
        with Model(run, features=True, max_batch=_BATCH) as model:
            parts = [model.classify_images([np.asarray(reader.open(name)) for name in listing.files[begin:begin + _BATCH]], features=True).features
                     for begin in range(0, len(listing), _BATCH)]
        return Features(listing.files, np.concatenate([part for part in parts if part is not None]))
    with tempfile.TemporaryDirectory(prefix="cresnet-") as folder:
        path = os.path.join(folder, "x.npy")
        if listing.kind == "folder":
            call(["features", operand(run), operand(root), "--quiet", "-o", path])
            return Features.load(path)
        # a list has one split, but the dataset may have two
        table = os.path.join(folder, "images.csv")
        with open(table, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["file"], *([os.path.abspath(os.path.join(root, name))] for name in listing.files)])
        call(["features", operand(run), operand(table), "--quiet", "-o", path])
        found = Features.load(path)
        names = {os.path.abspath(os.path.join(root, name)): name for name in listing.files}
        return Features([names.get(os.path.join(folder, name), name) for name in found.files], found.features)


def in_order(found: list[str], rows: Floats, files: list[str], what: str) -> Floats:
    """The rows of `files`, whose names are `found` in another order; nan for those that the program could not read. ArgumentError when the names are
    those of another dataset."""
    places = {name: place for place, name in enumerate(found)}
    chosen = np.array([places.get(name, -1) for name in files])
    if (chosen < 0).mean() > 0.5:
        raise ArgumentError(f"{what} are of other images: {found[0] if found else 'none'} instead of {files[0]}", "argument")
    ordered = np.asarray(rows[np.maximum(chosen, 0)], np.float32)
    ordered[chosen < 0] = np.nan
    return ordered
