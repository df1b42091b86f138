"""cresnet._classifier: cresnet.Classifier, an estimator of scikit-learn's kind (fit, predict, score), which does not need scikit-learn."""
from __future__ import annotations

import csv
import importlib
import inspect
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

import numpy as np
import numpy.typing as npt

from ._errors import ArgumentError, PathLike
from ._inspect.listing import class_images, splits
from ._model import Model
from ._packed import write
from ._run import Run, train

Samples = Union[PathLike, npt.NDArray[np.uint8], Iterable[PathLike]]
_SMALL = 64  # pixels: up to this size a network needs the stem for small images, and images are used as they are


class Classifier:
    """Trains a network on images and classifies others, as an estimator of scikit-learn (clone, GridSearchCV, cross_val_score, pickle).

    - arch: the network. epochs, batch, lr, device, threads, seed, weights and progress as of train().
    - image_size in pixels; None: that of the arrays, else 224.
    - validation_fraction: of each class so many images are held out, and the epoch that is best on them is kept.
    - settings: further keys, such as {"data.hflip": 0}.
    - output: the run folder; None: a temporary one, which is removed with this object.

    X is a uint8 array [N, H, W, C] with C = 1 or 3, a list of paths, or a folder with a folder for each class. Errors are ValueError for
    wrong images, labels and settings, and those of train() and Model.

    After fit(): classes_, the sorted classes, and run_, the Run."""

    _estimator_type = "classifier"

    def __init__(self, arch: str = "resnet18", *, epochs: int = 10, batch: int = 64, lr: float = 0.1, image_size: Optional[int] = None,
                 validation_fraction: float = 0.0, weights: Optional[PathLike] = None, device: str = "auto", threads: int = 0, seed: int = 1,
                 settings: Optional[Mapping[str, object]] = None, output: Optional[PathLike] = None, progress: bool = False) -> None:
        self.arch, self.epochs, self.batch, self.lr, self.image_size = arch, epochs, batch, lr, image_size
        self.validation_fraction, self.weights, self.device, self.threads, self.seed = validation_fraction, weights, device, threads, seed
        self.settings, self.output, self.progress = settings, output, progress

    # ---- parameters ----

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters of the constructor and their values."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **parameters: Any) -> Classifier:
        """Changes parameters for the next fit(); ValueError for an unknown one. Returns this object."""
        for name, value in parameters.items():
            if name not in self._names():
                raise ValueError(f"Classifier has no parameter {name}; it has {', '.join(self._names())}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        changed = (f"{name}={value!r}" for name, value in self.get_params().items() if repr(value) != repr(defaults[name].default))
        return f"Classifier({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        utils = importlib.import_module("sklearn.utils")
        return utils.Tags(estimator_type="classifier", target_tags=utils.TargetTags(required=False), classifier_tags=utils.ClassifierTags(),
                          transformer_tags=None, regressor_tags=None, input_tags=utils.InputTags(two_d_array=False, three_d_array=True))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classes_")

    # ---- training ----

    def fit(self, X: Samples, y: Optional[Iterable[Any]] = None) -> Classifier:
        """Trains a new network. y has a class for each image: numbers, strings or others that can be sorted. A folder gives y itself; it may
        have train/ and val/, and the best epoch of val/ is kept. Returns this object."""
        validation = None
        if isinstance(X, (str, os.PathLike)):
            if y is not None:
                raise ValueError("y must be None with a folder: its folders are the classes")
            X, y, validation = _folder(X)
        samples = _samples(X)
        labels = np.asarray([] if y is None else y if hasattr(y, "__array__") else list(y))
        if labels.dtype.kind == "f" and not np.all(labels == np.floor(labels)):
            raise ValueError("Unknown label type: y is continuous; give classes")
        if labels.ndim != 1 or len(labels) != len(samples):
            raise ValueError(f"y must have a label for each of the {len(samples)} images, not the shape {list(labels.shape)}")
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"y has {len(classes)} class: at least 2 are needed")
        self._free()
        with tempfile.TemporaryDirectory(prefix="cresnet-data-") as data:
            keys = self._write(data, samples, codes, _class_names(classes), validation, list(classes))
            run = train(os.path.join(data, "classifier.ini"), progress=self.progress, **keys,
                        output=self._new_run() if self.output is None else self.output)
        with open(os.path.join(run.path, "last", "classes.txt"), encoding="utf-8") as file:
            names = file.read().splitlines()
        self.run_, self.classes_ = run, classes
        self._opened: list[Model] = []
        self._order = [names.index(name) for name in _class_names(classes)]
        return self

    def _write(self, data: str, samples: Any, codes: npt.NDArray[np.int64], names: list[str], validation: Any,
               classes: list[Any]) -> dict[str, Any]:
        """Writes the images and a configuration into the folder `data`; returns the keys of the training."""
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction = {self.validation_fraction}: must be from 0 to less than 1, and leave images to train on")
        fraction = self.validation_fraction if validation is None else 0.0
        held = _held_out(codes, fraction, self.seed)
        kept = ~held if fraction else np.ones(len(codes), bool)
        keys: dict[str, Any] = {"data_root": data, "data_kind": "csv"}
        if isinstance(samples, np.ndarray):
            side = min(samples.shape[1:3])
            keys |= {"data_kind": "packed", "data_channels": samples.shape[3],
                     "data_image_size": self.image_size or f"{samples.shape[1]}x{samples.shape[2]}"}
            if (self.image_size or side) <= _SMALL:
                keys |= {"model_stem": "cifar", "data_crop": "pad", "data_pad": side // 8, "data_eval_resize": self.image_size or side}
            write(os.path.join(data, "train.crpk"), samples[kept], codes[kept], names)
            write(os.path.join(data, "val.crpk"), samples[held], codes[held], names)
        else:
            keys["data_image_size"] = self.image_size or 224
            given = [(samples[i], names[codes[i]]) for i in range(len(samples))]
            _write_list(os.path.join(data, "train.csv"), [given[i] for i in np.flatnonzero(kept)])
            _write_list(os.path.join(data, "val.csv"), [given[i] for i in np.flatnonzero(held)] if validation is None else
                        [(os.path.abspath(path), names[classes.index(name)]) for path, name in zip(*validation)])
        with open(os.path.join(data, "classifier.ini"), "w", encoding="utf-8") as file:
            file.write("[optim]\nweight_decay = 0.0005\n[schedule]\nkind = cosine\n")
        keys |= {"model_arch": self.arch, "train_log_every": 10, "train_tensorboard": False,
                 "train_eval_every": int(bool(fraction) or validation is not None), "epochs": self.epochs,
                 "batch": max(1, min(self.batch, int(kept.sum()))), "lr": self.lr, "device": self.device, "threads": self.threads,
                 "seed": self.seed, "weights": self.weights}
        return {**keys, **{name.replace(".", "_", 1): value for name, value in (self.settings or {}).items()}}

    # ---- classification ----

    def predict_proba(self, X: Samples) -> npt.NDArray[np.float64]:
        """Probabilities float64 [N, classes] in the order of classes_. ArgumentError for an image that cannot be read."""
        self._check_fitted()
        samples = _samples(_listed(X)[0] if isinstance(X, (str, os.PathLike)) else X)
        if not self._opened:
            self._opened.append(self.run_.model(device=self.device, threads=self.threads, max_batch=32))
        model = self._opened[0]
        if isinstance(samples, np.ndarray):
            if samples.shape[3] != model.info.channels:
                raise ValueError(f"X has {samples.shape[3]} channels, but the network was trained with {model.info.channels}")
            result = model.classify_images(list(samples), logits=True)
        else:
            result = model.classify_files(samples, logits=True)
            unread = next((error for error in result.errors if error), None)
            if unread:
                raise ArgumentError(unread, "input/output")
        assert result.logits is not None
        logits = result.logits[:, self._order].astype(np.float64)
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))

    def predict(self, X: Samples) -> npt.NDArray[Any]:
        """The most probable class of each image: an array [N] of elements of classes_."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def score(self, X: Samples, y: Optional[Iterable[Any]] = None, sample_weight: Optional[npt.NDArray[np.float64]] = None) -> float:
        """The fraction of images whose class is predicted, between 0 and 1, weighted by sample_weight [N]. Of a folder its own classes are the
        truth."""
        if y is None:
            if not isinstance(X, (str, os.PathLike)):
                raise ValueError("y is missing: the classes of the images")
            X, y = _listed(X)
        return float(np.average(self.predict(X) == np.asarray(y), weights=sample_weight))

    # ---- state ----

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            text = "this Classifier is not fitted: call fit() first"
            if "sklearn" in sys.modules:
                raise importlib.import_module("sklearn.exceptions").NotFittedError(text)
            raise ArgumentError(text, "argument")

    def _free(self) -> None:
        """Forgets an earlier fit()."""
        if hasattr(self, "_scratch"):
            self._scratch()
        for name in ("_opened", "_scratch", "run_", "classes_", "_order"):
            self.__dict__.pop(name, None)

    def _new_run(self) -> str:
        """A run folder that is removed with this object."""
        folder = tempfile.mkdtemp(prefix="cresnet-")
        self._scratch = weakref.finalize(self, shutil.rmtree, folder, True)
        return os.path.join(folder, "run")

    def __getstate__(self) -> dict[str, Any]:
        """With the files of the checkpoint, so that a pickled classifier needs no run folder."""
        state = {name: value for name, value in self.__dict__.items() if name not in ("_opened", "_scratch", "run_")}
        if self.__sklearn_is_fitted__():
            chosen = os.path.join(self.run_.path, "best")
            folder = os.path.realpath(chosen if os.path.exists(chosen) else os.path.join(self.run_.path, "last"))
            state["_files"] = {name: _content(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}
            state["_checkpoint"] = os.path.basename(folder)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files, checkpoint = state.get("_files"), state.get("_checkpoint")
        self.__dict__.update({name: value for name, value in state.items() if name not in ("_files", "_checkpoint")})
        if files is not None:
            run = self._new_run()
            folder = os.path.join(run, checkpoint or "")
            os.makedirs(folder)
            for name, content in files.items():
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(content)
            for link in ("best", "last"):
                os.symlink(checkpoint or "", os.path.join(run, link))
            self.run_, self._opened = Run(run), []


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _samples(X: Any) -> Union[npt.NDArray[np.uint8], list[str]]:
    """The images as an array [N,H,W,C], or as absolute paths."""
    if hasattr(X, "tocsr"):
        raise TypeError("X is sparse: sparse input is not supported")
    if not isinstance(X, np.ndarray) and hasattr(X, "__array__"):
        X = np.asarray(X)
    if isinstance(X, np.ndarray) and X.dtype.kind not in "OUS":
        if X.ndim != 4 or X.shape[3] not in (1, 3) or X.dtype != np.uint8:
            raise ValueError(f"X must be uint8 [images, height, width, 1 or 3], not {X.dtype} {list(X.shape)}")
        samples: Union[npt.NDArray[np.uint8], list[str]] = X
    else:
        try:
            samples = [os.path.abspath(os.path.expanduser(os.fsdecode(path))) for path in X]
        except TypeError as error:
            raise TypeError(f"X must be uint8 [images, height, width, 1 or 3] or a list of paths: the argument must be a string or a path: {error}"
                            ) from None
    if len(samples) == 0:
        raise ValueError("X has no images")
    return samples


def _listed(folder: PathLike, split: str = "") -> tuple[list[str], list[str]]:
    """The images of a folder with a folder for each class, and their classes."""
    folder = os.path.expanduser(folder)
    found = list(class_images(os.fspath(folder), split))
    if not found:
        raise ArgumentError(f"{os.path.join(folder, split)}: no images in folders, one folder for each class", "argument")
    return [os.path.join(folder, name) for name, _ in found], [label for _, label in found]


def _folder(folder: PathLike) -> tuple[list[str], list[str], Optional[tuple[list[str], list[str]]]]:
    """Images and classes of training; the same of validation, if the folder has val/."""
    inner, *validation = splits(os.path.expanduser(os.fspath(folder))) or [""]
    return (*_listed(folder, inner), _listed(folder, validation[0]) if validation else None)


def _class_names(classes: npt.NDArray[Any]) -> list[str]:
    """Names for the program; numbers where the classes as text are not plain and different."""
    names = [str(name) for name in classes]
    plain = all(name == name.strip() and name.isprintable() and name for name in names) and len(set(names)) == len(names)
    return names if plain else [f"{label:06}" for label in range(len(names))]


def _held_out(codes: npt.NDArray[np.int64], fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which images are evaluated: the fraction of each class, at least one and never all; the program needs one also where none is held out."""
    held, random = np.zeros(len(codes), bool), np.random.default_rng(seed)
    for label in range(int(codes.max()) + 1):
        places = np.flatnonzero(codes == label)
        held[random.permutation(places)[:min(max(1, round(fraction * len(places))), len(places) - bool(fraction))]] = True
    return held


def _write_list(path: str, lines: list[tuple[str, str]]) -> None:
    with open(path, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("file", "label"), *lines])
