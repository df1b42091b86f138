"""cresnet._mistakes: the images that a network classifies wrongly. See Run.errors()."""
from __future__ import annotations

import collections
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import numpy.typing as npt

from ._arguments import operand
from ._child import call
from ._errors import ArgumentError, PathLike

if TYPE_CHECKING:
    from ._inspect.page import Page
    from ._inspect.reading import Reader

__all__ = ["Errors", "Mistake"]


@dataclass(frozen=True)
class Mistake:
    """An image that was classified wrongly."""
    #: The image, as `cresnet eval --csv` names it.
    file: str
    #: Name of its class.
    label: str
    #: Name of the predicted class.
    predicted: str
    #: Probability of the predicted class.
    probability: float
    #: Probability of the true class.
    label_probability: float


class Errors:
    """The images of a split that a network classifies wrongly, the most confident mistake first; made by Run.errors(). It has a length, and iterating
    gives each Mistake."""

    def __init__(self, run: str, split: str, **keys: object) -> None:
        from ._inspect.program import predictions

        #: The run folder.
        self.run: str = run
        #: train or val.
        self.split: str = split
        self._all = predictions(run, split, **keys)
        predicted = self._all.probabilities.argmax(axis=1)
        places = np.flatnonzero(predicted != self._all.labels)
        confidence = self._all.probabilities[places, predicted[places]]
        self._predicted, self._places = predicted, places[np.argsort(-confidence, kind="stable")]

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Mistake]:
        return map(self._mistake, self._places)

    def __repr__(self) -> str:
        return f"cresnet.Errors({len(self)} of {self.images} images of {self.split} in {self.run!r})"

    @property
    def images(self) -> int:
        """Number of images of the split that could be read."""
        return len(self._all.files)

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the labels."""
        return self._all.classes

    def _mistake(self, place: int) -> Mistake:
        table, predicted = self._all, self._predicted[place]
        return Mistake(table.files[place], table.classes[table.labels[place]], table.classes[predicted], float(table.probabilities[place, predicted]),
                       float(table.probabilities[place, table.labels[place]]))

    def pairs(self) -> list[tuple[str, str, int]]:
        """True class, predicted class and number of images, most images first."""
        counts = collections.Counter((mistake.label, mistake.predicted) for mistake in self)
        return sorted(((a, b, count) for (a, b), count in counts.items()), key=lambda pair: (-pair[2], pair[:2]))

    def reliability(self, bins: int = 15) -> tuple[list[tuple[float, float, int, float, float]], float]:
        """The reliability diagram of all images of the split. For each bin of the largest probability: its limits, number of images, mean probability,
        fraction of correct images; and the expected calibration error between 0 and 1."""
        from ._inspect.scores import reliability

        if bins < 1:
            raise ArgumentError(f"bins = {bins}: at least 1", "argument")
        return reliability(self._all.probabilities, self._all.labels, bins)

    def precision_recall(self, name: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """precision [K], recall [K] and thresholds [K] of a class, by rising thresholds: an image is taken for the class when the probability of the class
        is at least the threshold. ArgumentError for an unknown class."""
        from ._inspect.scores import precision_recall

        if name not in self.classes:
            raise ArgumentError(f"{name}: no class of the network", "argument")
        label = self.classes.index(name)
        precision, recall, thresholds = precision_recall(self._all.probabilities[:, label].astype(np.float64), self._all.labels == label)
        return precision, recall, thresholds

    def copy_to(self, output: PathLike) -> int:
        """Copies the images to output/TRUE/PREDICTED/NAME, and images that are no files of their own as PNG. Returns their number. Files of equal names are
        numbered. ArgumentError when the folder exists and is not empty."""
        from ._inspect.page import naming
        folder = os.path.expanduser(output)
        if os.path.isdir(folder) and os.listdir(folder):
            raise ArgumentError(f"{folder}: the folder is not empty", "argument")
        reader = self._reader()
        for mistake in self:
            place = os.path.join(folder, _file_name(mistake.label), _file_name(mistake.predicted))
            os.makedirs(place, exist_ok=True)
            path = reader.path(mistake.file)
            if os.path.isfile(path):
                shutil.copyfile(path, _free(os.path.join(place, os.path.basename(path))))
            else:
                path = _free(os.path.join(place, _file_name(os.path.basename(mistake.file)) + ".png"))
                with naming(path):
                    reader.open(mistake.file).save(path)
        return len(self)

    def gallery(self, output: PathLike, *, nearest: int = 0, explain: int = 0, progress: bool = True) -> str:
        """Writes a folder with the page index.html, which works from a file: URL: all mistakes as thumbnails, by pair of classes and by confidence, a
        reliability diagram, and precision over recall. Needs the extra cresnet[audit].

        nearest: for each mistake so many most similar training images, by the features of the network. explain: for so many of the most confident
        mistakes Grad-CAM of the predicted class; each takes a start of the program. Returns the path of the page."""
        from ._inspect.page import Page, check_output, write_page
        from ._inspect.scores import curves

        folder = os.path.abspath(os.path.expanduser(output))
        reader = self._reader()
        check_output(folder)
        correct = 1 - len(self) / max(self.images, 1)
        page = Page(f"Errors of {os.path.basename(self.run)}", [f"{len(self):,} of {self.images:,} images of {self.split} are classified wrongly: top-1 "
                                                                f"{100 * correct:.2f} %.", f"Network: {self.run}"], sorted_by="confidence")
        page.data = {"curves": curves(self._all.probabilities, self._all.labels, self.classes)}
        order = self._add_items(page)
        neighbours = self._add_nearest(page, order, nearest, reader) if nearest > 0 and len(self) else []
        self._add_explanations(page, order, explain, folder, reader)

        def report(done: int, count: int) -> None:
            print(f"thumbnails: {done} of {count}", flush=True)
        return write_page(page, folder, reader, neighbours, report if progress else None)

    def _add_items(self, page: "Page") -> list[int]:
        """Adds the tiles, pair by pair. Returns their places in the table."""
        of_pair: dict[tuple[str, str], list[int]] = {}
        for place in self._places:
            mistake = self._mistake(place)
            of_pair.setdefault((mistake.label, mistake.predicted), []).append(int(place))
        order: list[int] = []
        for label, predicted, count in self.pairs():
            page.groups.append((f"{label} taken for {predicted}", count, ""))
            for place in of_pair[label, predicted]:
                mistake = self._mistake(place)
                page.items.append((mistake.file, label, f"{100 * mistake.probability:.1f} % {predicted}", mistake.probability,
                                   f"probability of {label}: {100 * mistake.label_probability:.1f} %"))
                order.append(place)
        return order

    def _add_nearest(self, page: "Page", order: list[int], count: int, reader: "Reader") -> list[str]:
        """Adds the most similar training images to each tile. Returns the names of these images."""
        from ._inspect.neighbours import nearest, normalised
        from ._inspect.program import features, predictions

        training = self._all.files if self.split == "train" else predictions(self.run, "train").files
        files = [self._all.files[place] for place in order]
        rows = np.nan_to_num(normalised(features(self.run, reader, training + files)))
        near, cosine = nearest(rows[:len(training)], rows[len(training):], count + 1)  # of the training images one may be the image itself
        used: dict[str, int] = {}
        for tile, file in enumerate(files):
            others = [(training[place], value) for place, value in zip(near[tile], cosine[tile]) if place >= 0 and training[place] != file][:count]
            page.more.setdefault(tile, {})["near"] = [(used.setdefault(name, len(used)), f"{name}, cosine {value:.3f}") for name, value in others]
        return list(used)

    def _add_explanations(self, page: "Page", order: list[int], count: int, output: str, reader: "Reader") -> None:
        shutil.rmtree(os.path.join(output, "explain"), ignore_errors=True)
        tiles = sorted(range(len(order)), key=lambda tile: -page.items[tile][3])[:count]
        if tiles:
            os.makedirs(os.path.join(output, "explain"))
        with tempfile.TemporaryDirectory(prefix="cresnet-") as folder:
            for tile in tiles:
                path = reader.path(page.items[tile][0])
                if not os.path.isfile(path):
                    path = os.path.join(folder, "image.png")
                    reader.open(page.items[tile][0]).save(path)
                drawn = f"explain/{tile}.png"
                call(["explain", operand(self.run), operand(path), "--quiet", f"--class={self._predicted[order[tile]]}", "-o", os.path.join(output, drawn)])
                page.more.setdefault(tile, {})["explain"] = drawn

    def _reader(self) -> "Reader":
        from ._inspect.program import stored_setting
        from ._inspect.reading import Reader

        reader = Reader(stored_setting(self.run, "data", "root"))
        gone = [mistake.file for mistake in self if not reader.exists(mistake.file)]
        if gone:
            raise ArgumentError(f"{gone[0]} is not there ({len(gone)} of {len(self)} images are missing): nothing was written", "argument")
        return reader


def _file_name(text: str) -> str:
    """A name of a class or image as the name of a file."""
    name = text.replace("/", "_").replace("\0", "_")
    return "_" + name if name in ("", ".", "..") else name


def _free(path: str) -> str:
    """The path, or one with a number when it exists."""
    stem, ending = os.path.splitext(path)
    number: Optional[int] = None
    while os.path.exists(path):
        number = 2 if number is None else number + 1
        path = f"{stem}-{number}{ending}"
    return path
