"""cresnet._inspect.labels: finds wrong labels (label errors) by probabilities of networks that have not seen them (confident learning, Northcutt et al.
2021)."""
from __future__ import annotations

import csv
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from .._errors import ArgumentError, CresnetError, PathLike
from .._packed import write
from .._run import Run, train
from .extra import extra
from .listing import Listing
from .neighbours import normalised
from .program import Floats, predictions, shown, stored_setting
from .reading import Reader

_SMALL = 64  # pixels: up to this size images are used as they are
_SURE = 0.8  # probability: the networks of separable classes are usually surer, but this is sure enough
_FEW = 10000  # images: fewer are trained in smaller batches and for more epochs
_STEPS, _MOST_EPOCHS = 1500, 60  # of trainings with few images: epochs until so many steps, but not more than so many
#: The recipes of the folds, unless the caller names a configuration. The networks are small, because there are as many as folds.
_RECIPE = """{model}
[train]
batch = {batch}
epochs = {epochs}
label_smoothing = 0.1
[optim]
lr = {lr}
nesterov = yes
weight_decay = 0.0005
[schedule]
kind = one_cycle
peak = 0.25
"""
_SMALL_IMAGES = {"model": "[model]\narch = resnet20\n[data]\ncrop = pad\npad_mode = reflect", "batch": 128, "epochs": 20, "lr": 0.4}
_PHOTOS = {"model": "[model]\narch = custom\nblock = basic\ndepths = 2,2,2,2\nwidths = 32,64,128,256\nstem = deep\nshortcut = D\nzero_init_last = yes\n"
                    "init = he_fan_in\n[data]\nimage_size = 96\neval_resize = 112\nscale = 0.35, 1.0", "batch": 64, "epochs": 40, "lr": 0.2}


@dataclass
class LabelScores:
    """N images; an image whose probabilities are unknown has nan."""
    #: [N, classes] probabilities of networks that were trained without the image.
    probabilities: Floats
    #: [N] probability of the label minus the largest of another class: -1 is surely wrong, 1 surely right.
    margin: npt.NDArray[np.float64]
    #: [N] the most probable class.
    suggested: npt.NDArray[np.int32]
    #: [N] whether the suggested class is not the label and is as probable as usual for images of that class.
    wrong: npt.NDArray[np.bool_]
    #: [classes, classes] confident images by label and suggested class.
    joint: npt.NDArray[np.int64]


def confident_learning(labels: npt.NDArray[np.int32], probabilities: Floats) -> LabelScores:
    """labels [N], probabilities [N, classes]. The threshold of a class is the mean probability of the class over the images that have it as label, at
    most 0.8. An image counts for the most probable class among those above their thresholds."""
    count, classes = probabilities.shape
    known = ~np.isnan(probabilities[:, 0])
    given = np.where(known, probabilities[np.arange(count), labels], np.nan).astype(np.float64)
    totals = np.bincount(labels[known], given[known], classes)
    thresholds = np.minimum(totals / np.maximum(np.bincount(labels[known], minlength=classes), 1), _SURE)
    margin, suggested, wrong = np.full(count, np.nan), np.zeros(count, np.int32), np.zeros(count, bool)
    joint = np.zeros((classes, classes), np.int64)
    for begin in range(0, count, 16384):
        part = slice(begin, min(begin + 16384, count))
        p, label = np.array(probabilities[part], np.float64), labels[part]
        rows = np.arange(len(p))
        above = np.where(p >= thresholds, p, -1)
        suggested[part] = best = above.argmax(axis=1)
        confident = (above[rows, best] >= 0) & known[part]
        np.add.at(joint, (label[confident], best[confident]), 1)
        wrong[part] = confident & (best != label)
        suggested[part] = np.where(confident, best, np.nan_to_num(p).argmax(axis=1))
        p[rows, label] = -1
        margin[part] = given[part] - p.max(axis=1)
    return LabelScores(probabilities, margin, suggested, wrong, joint)


def overlapping(joint: npt.NDArray[np.int64], least: int = 3) -> list[tuple[int, int, int, float]]:
    """Pairs of classes whose images are confused, most first: both classes, the number of confident images with the label of one and the content of the
    other, and their fraction of the images of the smaller class."""
    both = joint + joint.T
    sizes = np.maximum(joint.sum(axis=1), 1)
    first, second = np.nonzero(np.triu(both, 1) >= least)
    pairs = [(int(a), int(b), int(both[a, b]), float(both[a, b] / min(sizes[a], sizes[b]))) for a, b in zip(first, second)]
    return sorted(pairs, key=lambda pair: -pair[3])


def folds_of(labels: npt.NDArray[np.int32], groups: npt.NDArray[np.int64], folds: int, seed: int) -> npt.NDArray[np.int64]:
    """[N] fold of each image: of each class about as many in each fold. A group (its first image, see Duplicates) is in one fold: a network that was
    trained with a copy of an image would have seen it."""
    random, fold = np.random.default_rng(seed), np.zeros(len(labels), np.int64)
    for label in range(int(labels.max()) + 1):
        places = random.permutation(np.flatnonzero(labels == label))
        fold[places] = (np.arange(len(places)) + label) % folds
    return np.asarray(fold[groups])


def linear_probe(features: Floats, labels: npt.NDArray[np.int32], fold: npt.NDArray[np.int64], classes: int) -> Floats:
    """[N, classes] out-of-fold probabilities of a linear classifier on features [N,F]."""
    linear = extra("sklearn.linear_model")
    known = ~np.isnan(features[:, 0])
    vectors = normalised(np.nan_to_num(features)) * np.float32(np.sqrt(features.shape[1]))
    probabilities = np.full((len(labels), classes), np.nan, np.float32)
    for each in range(int(fold.max()) + 1):
        trained, held = known & (fold != each), known & (fold == each)
        if not held.any():
            continue
        model = linear.LogisticRegression(C=0.1, max_iter=200).fit(vectors[trained], labels[trained])
        probabilities[held] = 0
        probabilities[np.ix_(held, model.classes_)] = model.predict_proba(vectors[held])
    return probabilities


def out_of_fold(listing: Listing, reader: Reader, fold: npt.NDArray[np.int64], short_side: float, output: str, config: Optional[PathLike],
                on_line: Callable[[str], None], **keys: Any) -> Floats:
    """[N, classes] probabilities: for each fold a network is trained from random weights on the other folds, by `config`, whose data keys are replaced.
    The runs are in output/fold-0 and so on; a run that has ended is used again."""
    probabilities = np.full((len(listing), len(listing.classes)), np.nan, np.float32)
    if config is None:
        config = os.path.join(output, "folds.ini")
        with open(config, "w", encoding="utf-8") as file:
            file.write(_recipe(len(listing), short_side))
    for each in range(int(fold.max()) + 1):
        folder = os.path.join(output, f"fold-{each}")
        data = os.path.join(folder, "data")
        os.makedirs(data, exist_ok=True)
        held = np.flatnonzero(fold == each)
        kind = _write_fold(data, listing, reader, np.flatnonzero(fold != each), held)
        on_line(f"fold {each + 1} of {int(fold.max()) + 1}: training on {len(listing) - len(held)} images, {len(held)} are held out")
        run = _trained(folder, config, {"data_root": data, "data_kind": kind, **_fold_keys(short_side, keys)})
        flipped = float(stored_setting(run.path, "data", "hflip") or 0) > 0  # a mean with the mirrored image is more accurate
        found = predictions(run.path, tta="flip" if flipped else None)
        if found.classes != (listing.classes if kind == "packed" else [_class(label) for label in range(len(listing.classes))]):
            raise CresnetError(f"fold {each}: the network has other classes than the dataset")
        places = {shown(name): place for name, place in zip(_fold_names(data, listing, held), held)}
        probabilities[[places[shown(name)] for name in found.files]] = found.probabilities
    return probabilities


def _recipe(count: int, short_side: float) -> str:
    values: dict[str, Any] = dict(_SMALL_IMAGES if short_side <= _SMALL else _PHOTOS)
    if count < _FEW:
        steps = max(1, count // 32)
        values |= {"batch": min(32, max(1, count // 4)), "lr": values["lr"] * 32 / values["batch"],
                   "epochs": max(values["epochs"], min(_MOST_EPOCHS, _STEPS // steps))}
    return _RECIPE.format(**values)


def _trained(folder: str, config: PathLike, keys: dict[str, Any]) -> Run:
    """Trains, or opens the run of an earlier call that had the same configuration, keys and images, and has ended."""
    state = hashlib.sha256(repr(sorted(keys.items())).encode())
    for path in [os.fspath(config), *sorted(entry.path for entry in os.scandir(os.path.join(folder, "data")))]:
        with open(path, "rb") as file:
            state.update(file.read())
    output, mark = os.path.join(folder, "run"), os.path.join(folder, "trained.txt")
    if os.path.exists(mark) and os.path.isdir(output):
        with open(mark, encoding="utf-8") as text:
            if text.read() == state.hexdigest():
                return Run(output)
    shutil.rmtree(output, ignore_errors=True)
    run = train(config, output=output, progress=False, **keys)
    with open(mark, "w", encoding="utf-8") as text:
        text.write(state.hexdigest())
    return run


def _fold_keys(short_side: float, keys: dict[str, Any]) -> dict[str, Any]:
    """Keys of every fold: evaluated and saved only at the end; small images are used at their size."""
    small = {"data_image_size": int(short_side), "data_eval_resize": int(short_side)} if short_side <= _SMALL else {}
    return {**small, "train_eval_every": 0, "train_tensorboard": False, "train_keep": 1, **keys}


def _write_fold(data: str, listing: Listing, reader: Reader, kept: npt.NDArray[np.int64], held: npt.NDArray[np.int64]) -> str:
    """Writes the images of a fold, or a list of them. Returns data.kind."""
    for name, places in (("train", kept), ("val", held)):
        missing = set(range(len(listing.classes))) - set(listing.labels[places].tolist())
        if missing and name == "train":
            raise ArgumentError(f"the class {listing.classes[min(missing)]} has too few images for folds", "argument")
        if listing.kind.startswith("cifar"):
            pixels = np.stack([np.asarray(reader.open(listing.files[place])) for place in places])
            write(os.path.join(data, f"{name}.crpk"), pixels, listing.labels[places].astype(np.int64), listing.classes)
        else:
            for place in places:
                if "\n" in listing.files[place] or "\r" in listing.files[place]:
                    raise ArgumentError(f"{listing.files[place]!r}: the name has a line break, which lists of folds cannot have: rename the image", "argument")
            with open(os.path.join(data, f"{name}.csv"), "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
                csv.writer(file, quoting=csv.QUOTE_ALL).writerows(
                    [("file", "label"), *((_absolute(listing, place), _class(int(listing.labels[place]))) for place in places)])
    return "packed" if listing.kind.startswith("cifar") else "csv"


def _class(label: int) -> str:
    """The class in a list: names of folders may have semicolons, blanks or line breaks, which lists refuse."""
    return f"{label:05}"


def _absolute(listing: Listing, place: int) -> str:
    return os.path.abspath(os.path.join(listing.root, listing.files[place]))


def _fold_names(data: str, listing: Listing, held: npt.NDArray[np.int64]) -> list[str]:
    """The names that the program gives the images of val."""
    if listing.kind.startswith("cifar"):
        return [os.path.join(data, f"val.crpk[{row}]") for row in range(len(held))]
    return [_absolute(listing, place) for place in held]
