"""cresnet._inspect.program: runs the program to compute features (embeddings) and probabilities of images."""
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
from .._errors import ArgumentError
from .._model import Model
from .reading import Reader, as_utf8

Floats = npt.NDArray[np.float32]
_BATCH, _CALL = 64, 1024  # images that are computed at once, images of a call


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
            raise ArgumentError(f"{path}: cannot be read as an array that cresnet features has written: {error}", "argument") from None
        if rows.ndim != 2 or len(rows) != len(names):
            raise ArgumentError(f"{path}: the features are {list(rows.shape)}, but the table names {len(names)} images", "argument")
        return cls(names, rows)


def features(run: str, reader: Reader, files: list[str]) -> Floats:
    """[N, features] pooled features of images, in the order of their names; nan for an image that cannot be read."""
    with Model(run, features=True, max_batch=_BATCH) as model:
        rows = np.full((len(files), model.info.features), np.nan, np.float32)
        for begin in range(0, len(files), _CALL):
            names = files[begin:begin + _CALL]
            paths = [reader.path(name) for name in names]
            if any(map(os.path.isfile, paths)):
                found, places = model.classify_files(paths, features=True), list(range(len(names)))
            else:
                images = [(place, image) for place, image in enumerate(map(reader.pixels, names)) if image is not None]
                if not images:
                    continue
                found, places = model.classify_images([image for _, image in images], features=True), [place for place, _ in images]
            read = [row for row, error in enumerate(found.errors) if error is None]
            if found.features is not None:
                rows[[begin + places[row] for row in read]] = found.features[read]
    return rows


def shown(name: str) -> str:
    """A name as tables of the program have it, without the ./ that they put before names which a spreadsheet would take for formulas."""
    return as_utf8(name.removeprefix("./"))


def in_order(found: list[str], rows: Floats, files: list[str], what: str) -> Floats:
    """The rows of `files`, whose names are `found` in another order; nan for those that the program could not read. ArgumentError when the names are
    those of another dataset."""
    places = {shown(name): place for place, name in enumerate(found)}
    chosen = np.array([places.get(shown(name), -1) for name in files])
    if (chosen < 0).mean() > 0.5:
        raise ArgumentError(f"{what} are of other images: they have {(chosen >= 0).sum()} of {len(files)} names, and not {files[(chosen < 0).argmax()]}",
                            "argument")
    ordered = np.asarray(rows[np.maximum(chosen, 0)], np.float32)
    ordered[chosen < 0] = np.nan
    return ordered
