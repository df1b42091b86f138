"""cresnet._inspect.survey: runs all measurements of an audit, in order: duplicates, wrong labels, outliers."""
from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional, Union

import numpy as np
import numpy.typing as npt

from .._errors import ArgumentError, PathLike
from .._run import Run
from .duplicates import Duplicates, find_duplicates
from .extra import extra
from .images import Images, odd_images, read_images
from .labels import LabelScores, confident_learning, folds_of, linear_probe, out_of_fold, overlapping
from .listing import Listing, list_images
from .neighbours import outliers
from .page import check_output
from .program import Features, features, in_order
from .reading import Reader

_FAR = 2.5  # times the median distance: an outlier
_MOST_OUTLIERS = 0.01  # of the images


@dataclass
class Survey:
    listing: Listing
    reader: Reader
    images: Images
    #: Near-duplicates: see Duplicates.
    pairs: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    similarity: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    #: Copies: their places, and the least similarity of a pair; leaks first.
    groups: list[tuple[list[int], float]] = field(default_factory=list)
    labels: Optional[LabelScores] = None
    #: Places of all images with known probabilities, the most suspicious label first, and of those that are probably wrong.
    ranking: list[int] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)
    overlaps: list[tuple[int, int, int, float]] = field(default_factory=list)
    outliers: list[tuple[int, float]] = field(default_factory=list)
    odd: list[tuple[int, str, float]] = field(default_factory=list)
    #: Why a kind of findings was not looked for.
    skipped: dict[str, str] = field(default_factory=dict)


def survey(root: str, run: Optional[Union[Run, PathLike]], output: str, folds: int, config: Optional[PathLike], seed: int, threads: int,
           say: Callable[[str], None], keys: dict[str, Any]) -> Survey:
    """The arguments are those of audit()."""
    for module in ("PIL.Image", "faiss", "sklearn.linear_model"):
        extra(module)
    listing, reader = list_images(root), Reader(root)
    check_output(output)  # makes the folder, so a wrong dataset leaves none
    say(f"{root}: {len(listing)} images of {len(listing.classes)} classes in {len(listing.split_names)} split{'s' * (len(listing.split_names) > 1)}")
    given = _given_features(run, reader, listing, say)
    found = Survey(listing, reader, read_images(reader, listing.files, threads, _every_tenth(say, "reading images")))
    readable = found.images.width > 0
    if not readable.any():
        raise ArgumentError(f"{root}: no image can be read: {next(iter(found.images.unreadable.values()))}", "argument")
    found.odd = odd_images(found.images)
    say("comparing images")
    copies = find_duplicates(found.images, None if given is None else np.nan_to_num(given))
    found.pairs, found.similarity, found.groups = copies.pairs, copies.similarity, _groups(copies, listing)
    if folds:
        short = float(np.median(np.minimum(found.images.width, found.images.height)[readable]))
        fold = folds_of(listing.labels, copies.group, folds, seed)
        probabilities = (linear_probe(given, listing.labels, fold, len(listing.classes)) if given is not None else
                         out_of_fold(listing, reader, fold, short, output, config, say, **keys))
        _judge_labels(found, probabilities)
        if given is None:
            given = features(os.path.join(output, "fold-0", "run"), reader, listing.files)
    else:
        found.skipped["label"] = "Not looked for: folds = 0."
    if given is not None:
        found.outliers = _outliers(given, found.images)
    else:
        found.skipped["outlier"] = "Not looked for: there are neither features of a run nor folds."
    return found


def _every_tenth(say: Callable[[str], None], what: str) -> Callable[[int, int], None]:
    said = [0]

    def report(done: int, count: int) -> None:
        if done * 10 // count > said[0]:
            said[0] = done * 10 // count
            say(f"{what}: {done} of {count}")
    return report


def _given_features(run: Optional[Union[Run, PathLike]], reader: Reader, listing: Listing,
                    say: Callable[[str], None]) -> Optional[npt.NDArray[np.float32]]:
    if run is None:
        return None
    path = run.path if isinstance(run, Run) else os.path.expanduser(run)
    if path.endswith(".npy"):
        given = Features.load(path)
        return in_order(given.files, given.features, listing.files, "the features")
    say(f"features of {path}")
    return features(Run(path).path, reader, listing.files)


def _groups(copies: Duplicates, listing: Listing) -> list[tuple[list[int], float]]:
    """Groups of copies: those with images of several splits first, then the most similar ones."""
    least: dict[int, float] = {}
    for (a, _), similarity in zip(copies.pairs, copies.similarity):
        first = int(copies.group[a])
        least[first] = min(least.get(first, 1.0), float(similarity))
    members: dict[int, list[int]] = {}
    for index in np.unique(copies.pairs):
        members.setdefault(int(copies.group[index]), []).append(int(index))
    groups = [(places, least[first]) for first, places in members.items()]
    return sorted(groups, key=lambda group: (len({int(listing.splits[i]) for i in group[0]}) == 1, -group[1]))


def _judge_labels(found: Survey, probabilities: npt.NDArray[np.float32]) -> None:
    if np.isnan(probabilities[:, 0]).all():
        raise ArgumentError("the probabilities of all images are missing", "argument")
    found.labels = confident_learning(found.listing.labels, probabilities)
    order = np.argsort(found.labels.margin, kind="stable")  # nan is last
    found.ranking = [int(i) for i in order if not np.isnan(found.labels.margin[i])]
    found.wrong = [i for i in found.ranking if found.labels.wrong[i]]
    found.overlaps = overlapping(found.labels.joint)


def _outliers(given: npt.NDArray[np.float32], images: Images) -> list[tuple[int, float]]:
    known = np.flatnonzero(~np.isnan(given[:, 0]) & (images.width > 0))
    if len(known) < 20:
        return []
    scores = outliers(given[known])
    order = np.argsort(-scores, kind="stable")[:max(10, int(_MOST_OUTLIERS * len(known)))]
    return [(int(known[i]), float(scores[i])) for i in order if scores[i] >= _FAR]
