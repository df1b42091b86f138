#!/usr/bin/env python3
"""test_classifier.py: cresnet.Classifier on arrays, paths and folders, and under scikit-learn where it is installed; the packed file that it
writes against the program and against a CRC-32C computed bit by bit."""
import copy
import csv
import importlib.util
import os
import pickle
import re
import struct
import subprocess
import unittest
import zlib
from unittest import mock

import support
from support import BIN
import numpy as np
import cresnet
from cresnet import _classifier, _packed

TINY = {"model.block": "basic", "model.depths": "1,1", "model.widths": "16,32"}
with_sklearn = unittest.skipUnless(importlib.util.find_spec("sklearn"), "no scikit-learn")


def png(path):
    """The pixels of a PNG file of `cresnet data shapes`: 8 bits RGB without interlacing."""
    with open(path, "rb") as file:
        data, at, idat = file.read(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height = struct.unpack(">II", data[at + 8:at + 16])
        idat += data[at + 8:at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    lines = np.frombuffer(zlib.decompress(idat), np.uint8).reshape(height, 1 + 3 * width)
    pixels = np.zeros((height + 1, width + 1, 3), np.uint8)
    for y in range(height):
        for x in range(width):
            a, b, c = (pixels[y + 1, x].astype(int), pixels[y, x + 1].astype(int), pixels[y, x].astype(int))
            p = a + b - c
            paeth = np.where((abs(p - a) <= abs(p - b)) & (abs(p - a) <= abs(p - c)), a, np.where(abs(p - b) <= abs(p - c), b, c))
            pixels[y + 1, x + 1] = lines[y, 1 + 3 * x:4 + 3 * x] + (0, a, b, (a + b) // 2, paeth)[lines[y, 0]] & 255
    return pixels[1:, 1:]


def raw(path):
    """The pixels of a packed file of images of 32x32; test_as_data_pack compares such a file with PNG files."""
    with open(path, "rb") as file:
        data = file.read()
    names, index = struct.unpack("<QQ", data[40:56])
    return np.frombuffer(data[128 + names:index], np.uint8).reshape(-1, 32, 32, 3)


def tree(folder):
    """Paths and classes of the images below folder/CLASS/."""
    return zip(*[(f"{folder}/{name}/{image}", name) for name in sorted(os.listdir(folder)) for image in sorted(os.listdir(f"{folder}/{name}"))])


def classifier(**parameters):
    return cresnet.Classifier("custom", **{"epochs": 5, "batch": 8, "lr": 0.05, "device": "cpu", "threads": 1, "settings": TINY, **parameters})


def images(X):
    """Each row of a table as a grey image of bars."""
    X = np.asarray(X) if isinstance(X, list) or (hasattr(X, "__array__") and not hasattr(X, "tocsr")) else X
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype.kind not in "fiu" or not X.size:
        return X
    bars = np.stack([np.resize(row, 8) for row in np.clip(128 + 20 * X.astype(float), 0, 255).astype(np.uint8)])
    return np.repeat(bars[:, :, None], 8, axis=2)[..., None]


class OfTables(cresnet.Classifier):
    """For the checks of scikit-learn, which make tables of numbers."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags

    def fit(self, X, y=None):
        return super().fit(images(X), y)

    def predict_proba(self, X):
        return super().predict_proba(images(X))


class Packed(unittest.TestCase):
    def test_crc32c(self):
        self.assertEqual(_packed._crc_of(b"123456789"), 0xE3069283)
        data = np.random.default_rng(1).integers(0, 256, (5, 77), np.uint8)
        for length in (1, 2, 3, 77):
            for row, got in zip(data[:, :length], _packed.crc32c(data[:, :length])):
                crc = 0xFFFFFFFF
                for byte in row.tolist():
                    crc ^= byte
                    for _ in range(8):
                        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
                self.assertEqual(got, crc ^ 0xFFFFFFFF)
        with mock.patch.object(_packed, "_PART_BYTES", 100):
            self.assertTrue((_packed.crc32c(data) == [_packed._crc_of(row.tobytes()) for row in data]).all())

    def test_program_reads_it(self):
        os.mkdir("packed")
        for channels in (1, 3):
            for split in ("train", "val"):
                pixels = np.random.default_rng(channels).integers(0, 256, (6, 10, 7, channels), np.uint8)
                _packed.write(f"packed/{split}.crpk", pixels, np.arange(6) % 2, ["a", "b"])
            subprocess.run([BIN, "data", "verify", "packed", f"data.channels={channels}"], check=True, capture_output=True)

    def test_as_data_pack(self):
        subprocess.run([BIN, "data", "shapes", "few", "data.train_images=20", "data.val_images=10", "-q"], check=True, capture_output=True)
        subprocess.run([BIN, "data", "pack", "few", "pack", "--raw=32", "-q"], check=True, capture_output=True)
        paths, names = tree("few/train")
        classes, labels = np.unique(names, return_inverse=True)
        _packed.write("mine.crpk", np.stack([png(path) for path in paths]), labels, classes.tolist())
        with open("mine.crpk", "rb") as mine, open("pack/train.crpk", "rb") as theirs:
            self.assertEqual(mine.read(), theirs.read())


@support.needs_library
class Estimator(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        subprocess.run([BIN, "data", "shapes", "shapes", "data.train_images=240", "data.val_images=60", "-q"], check=True, capture_output=True)
        cls.paths, cls.names = map(list, tree("shapes/train"))
        cls.others, cls.truth = map(list, tree("shapes/val"))
        subprocess.run([BIN, "data", "pack", "shapes", "raw", "--raw=32", "-q"], check=True, capture_output=True)
        cls.X, cls.T = raw("raw/train.crpk"), raw("raw/val.crpk")
        cls.fitted = classifier().fit(cls.X, cls.names)

    def test_arrays(self):
        fitted = self.fitted
        self.assertEqual(fitted.classes_.tolist(), sorted(set(self.names)))
        proba = fitted.predict_proba(self.T)
        self.assertEqual(proba.shape, (60, 10))
        self.assertTrue(np.allclose(proba.sum(axis=1), 1))
        self.assertTrue((fitted.predict(self.T) == fitted.classes_[proba.argmax(axis=1)]).all())
        self.assertGreater(fitted.score(self.X, self.names), 0.15)
        self.assertEqual(fitted.score(self.T, self.truth, sample_weight=np.ones(60)), np.mean(fitted.predict(self.T) == self.truth))
        self.assertTrue((classifier().fit(self.X, self.names).predict_proba(self.T) == proba).all())  # equal seeds, equal networks
        said = subprocess.run([BIN, "predict", fitted.run_.path, *self.others[:20], "--csv", "-", "-q"], capture_output=True, text=True, check=True)
        self.assertEqual([line["predicted_class"] for line in csv.DictReader(said.stdout.splitlines())], fitted.predict(self.T[:20]).tolist())

    def test_classes_of_all_kinds(self):
        for classes in (np.array([30, -2, 100]), np.array([True, False]), np.array(["10", "9", " b"]), np.array(["x\n", "x"])):
            y = classes[np.arange(60) % len(classes)]
            for X in (self.X[:60], self.paths[:60]):
                fitted = classifier(epochs=1).fit(X, list(y))
                self.assertEqual(fitted.classes_.tolist(), sorted(classes.tolist()))
                with fitted.run_.model() as model:  # the labels of the network, by what it calls them
                    names = _classifier._class_names(fitted.classes_)
                    self.assertEqual([model.class_names[k] for k in fitted._order], names)

    def test_grey_and_validation(self):
        grey = self.X.mean(axis=3, keepdims=True).astype(np.uint8)
        few = np.flatnonzero(np.asarray(self.names) != self.names[0])[:20].tolist() + [list(self.names).index(self.names[0])]  # one image of a class
        self.assertIn(self.names[0], classifier(validation_fraction=0.25, epochs=1).fit(grey[few], [self.names[i] for i in few]).classes_)
        fitted = classifier(validation_fraction=0.25, output="grey").fit(grey, self.names)
        self.assertEqual(fitted.run_.path, os.path.abspath("grey"))
        self.assertEqual(fitted.run_.history["val_images"], [60] * 5)
        self.assertEqual(fitted.predict(grey[:3]).shape, (3,))
        with self.assertRaisesRegex(ValueError, "X has 3 channels, but the network was trained with 1"):
            fitted.predict(self.X[:3])

    def test_paths_and_folders(self):
        os.symlink("star", "shapes/train/.hidden")
        os.symlink("..", "shapes/train/star/up")
        by_folder = classifier(image_size=32, epochs=2).fit("shapes")
        self.assertEqual(by_folder.run_.history["val_images"], [60] * 2)
        halved = classifier(image_size=32, epochs=1, validation_fraction=0.5).fit("shapes")  # val/ is the validation: nothing is held out
        self.assertEqual(halved.run_.history["step"][-1] * 2, by_folder.run_.history["step"][-1])
        self.assertEqual(by_folder.score("shapes/val"), by_folder.score(self.others, self.truth))
        by_paths = classifier(image_size=32, epochs=2).fit(self.paths, self.names)
        self.assertTrue((by_paths.classes_ == by_folder.classes_).all())
        self.assertEqual(classifier(image_size=32, epochs=1).fit("shapes/train").predict("shapes/val").shape, (60,))
        with open("none.png", "w", encoding="utf-8") as file:
            file.write("none")
        with self.assertRaisesRegex(ValueError, "none.png.*not an image"):
            by_paths.predict([self.paths[0], "none.png"])

    def test_state(self):
        fitted = self.fitted
        for other in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
            self.assertTrue((other.predict_proba(self.T) == fitted.predict_proba(self.T)).all())
            self.assertNotEqual(other.run_.path, fitted.run_.path)
        fresh = pickle.loads(pickle.dumps(classifier(epochs=3)))
        self.assertEqual((fresh.get_params(), fresh.__sklearn_is_fitted__()), (classifier(epochs=3).get_params(), False))
        self.assertEqual(repr(fresh.set_params(settings=None, lr=0.2)),
                         "Classifier(arch='custom', epochs=3, batch=8, lr=0.2, device='cpu', threads=1)")
        gone = classifier(epochs=1).fit(self.X[:40], self.names[:20] + ["x"] * 20)
        folder = os.path.dirname(gone.run_.path)
        del gone
        self.assertFalse(os.path.exists(folder))

    def test_errors(self):
        fresh = classifier()
        with mock.patch.dict("sys.modules"):
            __import__("sys").modules.pop("sklearn", None)
            self.assertRaisesRegex(cresnet.ArgumentError, "not fitted", fresh.predict, self.T)
        for text, call in (("no parameter depth", lambda: fresh.set_params(depth=3)),
                           ("X must be uint8", lambda: fresh.fit(self.X / 255, self.names)),
                           ("X must be uint8", lambda: fresh.fit(self.X[..., :2], self.names)),
                           ("X has no images", lambda: fresh.fit([], [])),
                           ("y has 1 class", lambda: fresh.fit(self.X, ["a"] * 240)),
                           ("y must have a label for each of the 240", lambda: fresh.fit(self.X, self.names[1:])),
                           ("y must be None with a folder", lambda: fresh.fit("shapes", self.names)),
                           ("y is missing", lambda: self.fitted.score(self.T)),
                           ("no images in folders", lambda: fresh.fit("shapes/train/star")),
                           ("leave images to train on", lambda: classifier(validation_fraction=1.0).fit(self.X, self.names)),
                           ("unknown key", lambda: classifier(settings={"optim.lrr": 1}).fit(self.X, self.names))):
            with self.subTest(text):
                self.assertRaisesRegex(ValueError, text, call)

    @with_sklearn
    def test_sklearn(self):
        from sklearn.base import clone, is_classifier
        from sklearn.exceptions import NotFittedError
        from sklearn.model_selection import GridSearchCV, cross_val_score
        from sklearn.utils import estimator_checks as checks
        fresh = classifier(epochs=1)
        self.assertEqual(clone(fresh).get_params(), fresh.get_params())
        self.assertTrue(is_classifier(fresh))
        self.assertRaises(NotFittedError, fresh.predict, self.T)
        y = np.array(self.names)
        self.assertEqual(cross_val_score(fresh, self.X, y, cv=2, error_score="raise").shape, (2,))
        grid = GridSearchCV(fresh, {"lr": [0.01, 0.1]}, cv=2, error_score="raise").fit(self.X, y)
        self.assertIn(grid.best_params_["lr"], (0.01, 0.1))
        if hasattr(checks, "estimator_checks_generator"):  # 1.6
            self.check_estimator(checks.check_estimator)

    def check_estimator(self, check_estimator):
        """Those that fail are listed in the guide, with the reason."""
        estimator = OfTables("custom", epochs=3, batch=16, device="cpu", threads=1,
                             settings={"model.block": "basic", "model.depths": "1", "model.widths": "16", "data.hflip": 0, "data.pad": 0})
        results = check_estimator(estimator, on_fail=None, on_skip=None)
        failed = {result["check_name"] for result in results if result["status"] == "failed"}
        with open(f"{support.ROOT}/docs/guides/python.md", encoding="utf-8") as guide:
            listed = set(re.findall(r"`(check_\w+)`", guide.read()))
        self.assertLessEqual(failed, listed, [(r["check_name"], r["exception"]) for r in results if r["check_name"] in failed - listed])
        self.assertGreater(len(results) - len(failed), 35)

    @with_sklearn
    def test_digits(self):
        from sklearn.datasets import load_digits
        digits = load_digits()
        X = (digits.images * 15).astype(np.uint8)[..., None]
        fitted = classifier(epochs=4, settings={**TINY, "data.hflip": 0}).fit(X[:1400], digits.target[:1400])
        self.assertGreater(fitted.score(X[1400:], digits.target[1400:]), 0.85)


if __name__ == "__main__":
    support.main()
