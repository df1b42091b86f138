#!/usr/bin/env python3
"""test_errors.py: Run.errors() against the table and the scores of the program; copies, page, wrong input."""
import csv
import importlib.util
import json
import os
import subprocess
import unittest

import support  # finds a Python with numpy
import numpy as np

from support import BIN
import cresnet

EXTRA = all(importlib.util.find_spec(module) for module in ("faiss", "PIL", "sklearn"))


@unittest.skipUnless(EXTRA, "no faiss, Pillow and scikit-learn")
class Errors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.run_ = cresnet.train("tiny.ini", output="wrong", progress=False, epochs=1)
        subprocess.run([BIN, "eval", "wrong", "--csv", "table.csv", "-q"], check=True, capture_output=True)
        with open("table.csv", encoding="utf-8", newline="") as file:
            cls.table = list(csv.DictReader(file))
        cls.errors = cls.run_.errors()

    def test_counts(self):
        wrong = [row for row in self.table if row["label"] != row["predicted_label"]]
        self.assertEqual({mistake.file for mistake in self.errors}, {row["file"] for row in wrong})
        self.assertAlmostEqual(1 - len(self.errors) / self.errors.images, self.run_.evaluate()["top1"], 6)
        by_file = {row["file"]: row for row in wrong}
        for mistake in self.errors:
            row = by_file[mistake.file]
            self.assertEqual((mistake.label, mistake.predicted), (row["class"], row["predicted_class"]))
            self.assertAlmostEqual(mistake.probability, float(row["probability"]), 5)
            self.assertAlmostEqual(mistake.label_probability, float(row["p:" + row["class"]]), 5)
        confidence = [mistake.probability for mistake in self.errors]
        self.assertEqual(confidence, sorted(confidence, reverse=True))
        self.assertEqual(sum(count for _, _, count in self.errors.pairs()), len(wrong))
        a, b, count = self.errors.pairs()[0]
        self.assertEqual(count, sum((row["class"], row["predicted_class"]) == (a, b) for row in wrong))
        self.assertGreater(len(self.run_.errors("train")), 0)

    def test_curves(self):
        from sklearn.metrics import precision_recall_curve
        truth = np.array([row["class"] == "star" for row in self.table])
        score = np.array([float(row["p:star"]) for row in self.table])
        precision, recall, thresholds = self.errors.precision_recall("star")
        expected = precision_recall_curve(truth, score)
        np.testing.assert_allclose(precision, expected[0][:-1], atol=1e-6)
        np.testing.assert_allclose(recall, expected[1][:-1], atol=1e-6)
        np.testing.assert_allclose(thresholds, expected[2], atol=1e-6)
        said = subprocess.run([BIN, "eval", "wrong", "--json", "--per-class", "-q"], check=True, capture_output=True, text=True).stdout
        self.assertAlmostEqual(self.errors.reliability()[1], json.loads(said)["calibration_error"], 4)

    def test_copies(self):
        self.assertEqual(self.errors.copy_to("sorted"), len(self.errors))
        for mistake in self.errors:
            with open(mistake.file, "rb") as original, open(f"sorted/{mistake.label}/{mistake.predicted}/{os.path.basename(mistake.file)}", "rb") as copy:
                self.assertEqual(original.read(), copy.read())
        with self.assertRaisesRegex(cresnet.ArgumentError, "not empty"):
            self.errors.copy_to("sorted")

    def test_gone(self):
        """A dataset that was moved: one error, and nothing is copied."""
        errors = self.run_.errors()
        places = errors._all.files
        errors._all.files = [name + ".gone" for name in places]
        try:
            for write in (errors.copy_to, errors.gallery):
                with self.assertRaisesRegex(cresnet.ArgumentError, "is not there .*nothing was written"):
                    write("gone")
        finally:
            errors._all.files = places
        self.assertFalse(os.path.exists("gone"))

    @support.needs_library
    def test_features(self):
        """Images that are gone or damaged have nan, beside files and alone."""
        from cresnet._inspect.program import features
        from cresnet._inspect.reading import Reader
        with open("damaged.png", "wb") as file:
            file.write(b"\x89PNG no more")
        good = next(row["file"] for row in self.table)
        for files in (["gone.png", good, "damaged.png"], ["gone.png"]):
            rows = features("wrong", Reader("."), files)
            self.assertEqual(np.isfinite(rows).all(axis=1).tolist(), [file == good for file in files])

    def test_gallery(self):
        page = self.errors.gallery("gallery", explain=2, progress=False)
        with open("gallery/data.js", encoding="utf-8") as file:
            data = json.loads(file.read()[len("window.pageData="):-2])
        self.assertEqual(page, os.path.abspath("gallery/index.html"))
        self.assertEqual([(group[0], group[1]) for group in data["groups"]], [(f"{a} taken for {b}", count) for a, b, count in self.errors.pairs()])
        self.assertEqual(len(data["items"]["file"]), len(self.errors))
        explained = [more["explain"] for more in data["more"].values() if "explain" in more]
        self.assertEqual(len(explained), 2)
        for path in (*explained, *(f"thumbs/0/{number}.jpg" for number in data["items"]["thumb"])):
            self.assertGreater(os.path.getsize(f"gallery/{path}"), 100)
        for name in data["items"]["file"]:
            self.assertTrue(os.path.exists(os.path.join("gallery", data["originals"], name)), name)

    @support.needs_library
    def test_nearest(self):
        self.errors.gallery("nearest", nearest=3, progress=False)
        with open("nearest/data.js", encoding="utf-8") as file:
            data = json.loads(file.read()[len("window.pageData="):-2])
        with self.run_.model(features=True) as model:
            training = sorted(os.path.join(place, name) for place, _, names in os.walk("shapes/train") for name in names if name.endswith(".png"))
            base = model.classify_files(training, features=True).features
            query = model.classify_files([data["items"]["file"][0]], features=True).features
        cosine = (base @ query[0]) / np.linalg.norm(base, axis=1) / np.linalg.norm(query[0])
        best = training[int(cosine.argmax())]
        self.assertIn(best, data["more"]["0"]["near"][0][1])

    def test_mistakes(self):
        with self.assertRaisesRegex(cresnet.ArgumentError, "split"):
            self.run_.errors("vla")
        with self.assertRaisesRegex(cresnet.ArgumentError, "no class"):
            self.errors.precision_recall("sta")
        with self.assertRaisesRegex(cresnet.ArgumentError, "bins"):
            self.errors.reliability(0)


if __name__ == "__main__":
    support.main()
