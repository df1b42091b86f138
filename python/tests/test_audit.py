#!/usr/bin/env python3
"""test_audit.py: cresnet.audit() on images with planted faults; its parts against scikit-learn and plain loops; wrong input."""
import contextlib
import csv
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import unittest

import support  # finds a Python with numpy
import numpy as np

from support import BIN, WORK
import cresnet
from cresnet._inspect import duplicates, images, labels, listing, neighbours, register, scores

EXTRA = all(importlib.util.find_spec(module) for module in ("faiss", "PIL", "sklearn"))
needs_extra = unittest.skipUnless(EXTRA, "no faiss, Pillow and scikit-learn")
if EXTRA:
    from PIL import Image, ImageEnhance

    from cresnet._inspect.program import in_order
    from cresnet._inspect.reading import Reader


def scene(seed, side=96):
    """A synthetic photo: colours that vary smoothly, with details."""
    random = np.random.default_rng(seed)
    total = np.zeros((side, side, 3))
    for cells, weight in ((3, 1.0), (7, 0.6), (17, 0.4), (31, 0.2)):
        part = Image.fromarray(random.integers(0, 256, (cells, cells, 3), np.uint8)).resize((side, side), Image.BICUBIC)
        total += weight * np.asarray(part, float)
    return Image.fromarray((total / 2.2).clip(0, 255).astype(np.uint8))


def rows_of(path):
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        return list(csv.DictReader(file))


@needs_extra
class Parts(unittest.TestCase):
    def test_nearest(self):
        random = np.random.default_rng(1)
        centres = random.normal(size=(200, 24))
        base = neighbours.normalised((centres[random.integers(0, 200, 6000)] + 0.3 * random.normal(size=(6000, 24))).astype(np.float32))
        places, products = neighbours.nearest(base, base[:500], 6)
        exact = np.argsort(-(base[:500].astype(float) @ base.T.astype(float)), axis=1)[:, :6]
        self.assertGreater(np.mean([len(set(a) & set(b)) / 6 for a, b in zip(places, exact)]), 0.97)
        np.testing.assert_allclose(products[:, 0], 1, atol=1e-5)
        again = neighbours.nearest(base, base[:500], 6)
        self.assertTrue((again[0] == places).all() and (again[1] == products).all())
        few = neighbours.nearest(base[:900], base[:5], 3)[0]
        np.testing.assert_array_equal(few, np.argsort(-(base[:5] @ base[:900].T), axis=1)[:, :3])
        self.assertEqual(neighbours.nearest(base[:2], base[:2], 5)[0].shape, (2, 2))

    def test_groups(self):
        group = neighbours.groups_of(8, np.array([[1, 5], [5, 7], [2, 3]]))
        self.assertEqual(group.tolist(), [0, 1, 2, 2, 4, 1, 6, 1])

    def test_registered(self):
        pictures = [scene(seed, 128) for seed in range(40)]
        small = lambda image: register.blurred(np.asarray(image.convert("L").resize((32, 32), Image.BOX), np.float32)[None])
        for left, top, scale in ((0, 0, 0.95), (6, 6, 0.95), (3, 0, 0.96), (0, 0, 1.0)):
            for picture in pictures[:10]:
                cut = picture.crop((left, top, left + round(scale * 128), top + round(scale * 128)))
                darker = ImageEnhance.Brightness(cut).enhance(0.7)
                self.assertGreater(float(register.registered(small(darker), small(picture))[0]), 0.95)
        for a, b in zip(pictures, pictures[1:]):
            self.assertLess(float(register.registered(small(a), small(b))[0]), 0.6)

    def test_confident_learning(self):
        random = np.random.default_rng(2)
        given, p = random.integers(0, 4, 300).astype(np.int32), random.dirichlet([0.4] * 4, 300).astype(np.float32)
        p[17] = np.nan
        found = labels.confident_learning(given, p)
        known = [i for i in range(300) if i != 17]
        threshold = [min(0.8, np.mean([p[i, k] for i in known if given[i] == k])) for k in range(4)]
        joint = np.zeros((4, 4), int)
        for i in known:
            above = [k for k in range(4) if p[i, k] >= threshold[k]]
            best = max(above, key=lambda k: p[i, k]) if above else None
            self.assertEqual(found.wrong[i], best is not None and best != given[i])
            self.assertAlmostEqual(found.margin[i], p[i, given[i]] - max(p[i, k] for k in range(4) if k != given[i]), 6)
            if best is not None:
                joint[given[i], best] += 1
                self.assertEqual(found.suggested[i], best)
        np.testing.assert_array_equal(found.joint, joint)
        self.assertTrue(np.isnan(found.margin[17]) and not found.wrong[17])
        a, b, count, part = labels.overlapping(joint)[0]
        self.assertEqual((count, part), (joint[a, b] + joint[b, a], (joint[a, b] + joint[b, a]) / min(joint.sum(axis=1)[[a, b]])))

    def test_folds(self):
        given = np.repeat(np.arange(3, dtype=np.int32), (50, 20, 11))
        groups = np.arange(81)
        groups[40] = 3
        fold = labels.folds_of(given, groups, 5, 1)
        self.assertEqual(fold[40], fold[3])
        for label in range(3):
            counts = np.bincount(fold[given == label], minlength=5)
            self.assertLessEqual(counts.max() - counts.min(), 2)

    def test_curves(self):
        from sklearn.metrics import average_precision_score, precision_recall_curve
        random = np.random.default_rng(3)
        truth = random.random(400) < 0.3
        score = np.round(truth * 0.3 + random.random(400) * 0.7, 2)
        precision, recall, threshold = scores.precision_recall(score, truth)
        expected = precision_recall_curve(truth, score)
        for got, want in zip((precision, recall, threshold), (expected[0][:-1], expected[1][:-1], expected[2])):
            np.testing.assert_allclose(got, want, atol=1e-12)
        self.assertAlmostEqual(scores.average_precision(precision, recall), average_precision_score(truth, score), 12)
        p, given = random.dirichlet([0.3] * 5, 500).astype(np.float32), random.integers(0, 5, 500).astype(np.int32)
        bins, error = scores.reliability(p, given, 10)
        total = 0
        for low, high, count, mean, correct in bins:
            inside = (p.max(axis=1) > low) & (p.max(axis=1) <= high)
            self.assertEqual(count, inside.sum())
            if count:
                self.assertAlmostEqual(mean, p.max(axis=1)[inside].mean(), 6)
                self.assertAlmostEqual(correct, (p.argmax(axis=1) == given)[inside].mean(), 12)
                total += count * abs(mean - correct)
        self.assertAlmostEqual(error, total / 500, 12)

    def test_probe(self):
        random = np.random.default_rng(4)
        given = np.repeat(np.arange(3, dtype=np.int32), 60)
        features = (np.eye(3)[given] * 3 + random.normal(size=(180, 3))).astype(np.float32)
        given[5], features[7] = 2, np.nan
        p = labels.linear_probe(features, given, labels.folds_of(given, np.arange(180), 5, 1), 3)
        self.assertTrue(np.isnan(p[7]).all())
        np.testing.assert_allclose(np.delete(p, 7, 0).sum(axis=1), 1, atol=1e-5)
        self.assertEqual(np.nanargmin(labels.confident_learning(given, p).margin[:60]), 5)


def images_of(*keys):
    """The number of training and of validation images that the program uses."""
    said = subprocess.run([BIN, "data", "--json", "-q", "tiny.ini", "data.train_images=0", "data.val_images=0", *keys], capture_output=True, text=True, check=False)
    if said.returncode:
        raise AssertionError(said.stderr)
    return [json.loads(said.stdout)[split]["images"] for split in ("train", "val")]


def plant(root):
    """Shapes with planted faults. Returns their names."""
    subprocess.run([BIN, "data", "shapes", root, "data.train_images=300", "data.val_images=100", "-q"], check=True, capture_output=True)
    for split, count in (("train", 10), ("val", 3)):  # photos, because shapes are too alike to tell copies from others
        for label in ("circle", "star"):
            for k in range(count):
                scene(100 * len(split) + 20 * len(label) + k).save(f"{root}/{split}/{label}/photo{k}.jpg", quality=92)
    original = Image.open(f"{root}/train/star/photo1.jpg")
    original.resize((70, 70)).save(f"{root}/train/star/resized.jpg", quality=60)
    original.crop((2, 3, 93, 94)).save(f"{root}/val/star/cropped.jpg")
    ImageEnhance.Brightness(Image.open(f"{root}/train/circle/photo2.jpg")).enhance(1.2).save(f"{root}/train/circle/brighter.jpg")
    shutil.copy(f"{root}/train/circle/photo3.jpg", f"{root}/train/star/copy.jpg")
    Image.new("RGB", (32, 32), (200, 10, 10)).save(f"{root}/train/circle/red.png")
    Image.new("RGB", (320, 32), (0, 10, 10)).save(f"{root}/val/circle/dark.png")
    scene(5).resize((400, 40)).save(f"{root}/train/circle/wide.jpg")
    with open(f"{root}/train/circle/broken.jpg", "wb") as file:
        file.write(b"\xff\xd8\xff\xe0 no more")


@needs_extra
class Audit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        plant("faulty")

    def test_without_labels(self):
        found = cresnet.audit("faulty", output="plain", folds=0, progress=False)
        pairs = {}
        for finding in found.findings:
            if finding.group >= 0:
                pairs.setdefault(finding.group, set()).add(finding.file)
        groups = [group for group in pairs.values() if any(name.endswith(".jpg") for name in group)]
        for expected in ({"train/star/photo1.jpg", "train/star/resized.jpg", "val/star/cropped.jpg"}, {"train/circle/photo2.jpg", "train/circle/brighter.jpg"},
                         {"train/circle/photo3.jpg", "train/star/copy.jpg"}):
            self.assertIn(expected, groups)
        self.assertEqual(len(groups), 3)
        excluded = {row["file"] for row in rows_of("plain/exclude.csv")}
        self.assertLessEqual({"train/star/photo1.jpg", "train/star/resized.jpg", "train/circle/photo2.jpg", "train/circle/broken.jpg"}, excluded)
        self.assertNotIn("val/star/cropped.jpg", excluded)
        self.assertNotIn("train/star/copy.jpg", excluded)  # its label differs: a person has to choose
        keys = ("data.kind=folder", "data.root=faulty")
        before, after = images_of(*keys), images_of(*keys, "data.exclude=plain/exclude.csv")
        self.assertEqual(sum(before) - sum(after), len(excluded))
        self.assertEqual(before[0] - after[0], sum(name.startswith("train/") for name in excluded))
        odd = {finding.file: finding.reason for finding in found.of("odd")}
        for name, reason in (("train/circle/red.png", "one colour"), ("val/circle/dark.png", "one colour"), ("train/circle/wide.jpg", "unusual shape: 400x40"),
                             ("train/circle/broken.jpg", "unreadable")):
            self.assertIn(reason, odd[name])
        self.assertEqual((found.of("label"), found.of("outlier")), ([], []))
        with open("plain/data.js", encoding="utf-8") as file:
            data = json.loads(file.read()[len("window.pageData="):-2])
        self.assertEqual(sum(group[1] for group in data["groups"]), len(found.findings))
        self.assertTrue(os.path.exists(f"plain/thumbs/0/{data['items']['thumb'][0]}.jpg"))

    @support.needs_library
    def test_labels(self):
        os.makedirs("noisy/images")
        rows, wrong, random, classes = [], set(), np.random.default_rng(1), ["red", "green", "blue"]
        for i in range(180):  # one channel is brighter
            pixels = random.integers(0, 200, (32, 32, 3))
            pixels[:, :, i % 3] += 55
            name, label = f"images/{i}.png", i % 3
            Image.fromarray(pixels.astype(np.uint8)).save(f"noisy/{name}")
            if i % 20 == 7:
                label = (label + 1 + i // 20 % 2) % 3
                wrong.add(name)
            rows.append((name, classes[label]))
        with open("noisy/train.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("file", "label"), *rows])
        found = cresnet.audit("noisy", output="judged", folds=3, progress=False, threads=2, model_arch="custom", model_block="basic", model_depths="1,1",
                              model_widths="8,16", model_stem="cifar", train_threads=2, epochs=15, device="cpu")
        ranking = rows_of("judged/ranking.csv")
        self.assertEqual(len(ranking), len(rows))
        first = {row["file"] for row in ranking[:len(wrong)]}
        self.assertGreaterEqual(len(first & wrong), len(wrong) - 1)
        self.assertEqual(sum(images_of("data.kind=csv", "data.root=noisy", "data.val_fraction=0.2", "data.labels=judged/labels.csv")), len(rows))
        suggested = {row["file"]: row["label"] for row in rows_of("judged/labels.csv")}
        for name in first & wrong:
            self.assertEqual(suggested[name], classes[int(name[len("images/"):-len(".png")]) % 3])
        margins = [float(row["margin"]) for row in ranking]
        self.assertEqual(margins, sorted(margins))
        self.assertEqual({row["file"] for row in rows_of("judged/labels.csv")} | {row["file"] for row in rows_of("judged/exclude.csv")},
                         {finding.file for finding in found.of("label")} | {row["file"] for row in rows_of("judged/exclude.csv")})
        self.assertTrue(os.path.isdir("judged/fold-2/run/last"))

    def test_module(self):
        ran = subprocess.run([sys.executable, "-m", "cresnet.audit", "faulty", "-o", "command", "--folds", "0", "train.batch=8"], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("page: ", ran.stdout)
        code = "import cresnet.audit; print(cresnet.audit('faulty', output='called', folds=0, progress=False).images)"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual(ran.stdout.strip(), str(len(listing.list_images("faulty"))), ran.stderr)

    def test_mistakes(self):
        os.makedirs("single/only")
        scene(1).save("single/only/a.jpg")
        os.makedirs("gone")
        with open("gone/train.csv", "w", encoding="utf-8") as file:
            file.write("file,label\nnone.jpg,a\nother.jpg,b\n")
        os.makedirs("foreign")
        with open("foreign/index.html", "w", encoding="utf-8") as file:
            file.write("<p>mine")
        for name, rows in (("short", 3), ("others", 2)):
            np.save(f"{name}.npy", np.zeros((rows, 4), np.float32))
            with open(f"{name}.csv", "w", encoding="utf-8") as file:
                file.write("file,label\nx.jpg,a\ny.jpg,b\n")
        for arguments, text in ((("single",), "of 1 class"), (("none",), "no such folder"), (("gone",), "2 of 2 files do not exist, the first one is none.jpg"),
                                (("faulty", "no-run"), "no-run"), (("faulty", "short.npy"), r"features are \[3, 4\]"), (("faulty", "others.npy"), "of other images"),
                                (("faulty", "none.npy"), "none.npy")):
            with self.assertRaisesRegex(cresnet.ArgumentError, text):
                cresnet.audit(*arguments, output="never", folds=0, progress=False)
        with self.assertRaisesRegex(cresnet.ArgumentError, "not written by cresnet"):
            cresnet.audit("faulty", output="foreign", folds=0, progress=False)
        with self.assertRaisesRegex(cresnet.ArgumentError, "foreign/index.html: is a file"):
            cresnet.audit("faulty", output="foreign/index.html", folds=0, progress=False)
        with self.assertRaisesRegex(cresnet.ArgumentError, "index.html: is a file: name the folder of the images"):
            cresnet.audit("foreign/index.html", output="never", folds=0, progress=False)
        with self.assertRaisesRegex(cresnet.ArgumentError, "0 images of no class"):
            cresnet.audit("foreign", output="never", folds=0, progress=False)
        with self.assertRaisesRegex(cresnet.ArgumentError, "they have 0 of .* names, and not train"):
            cresnet.audit("faulty", "others.npy", output="never", folds=0, progress=False)
        with self.assertRaisesRegex(cresnet.ArgumentError, "folds = 1"):
            cresnet.audit("faulty", folds=1)
        with self.assertRaises(TypeError):
            cresnet.audit("faulty", output="never", folds=2, progress=False, nonsense=1)

    def test_full_disk(self):
        from unittest import mock

        from cresnet.audit import main
        full = OSError(28, "No space left on device")
        with mock.patch.object(Image.Image, "save", side_effect=full), self.assertRaisesRegex(OSError, r"No space left on device: '.*thumbs/0/\d+.jpg'"):
            cresnet.audit("faulty", output="full", folds=0, progress=False)
        with mock.patch.object(Image.Image, "save", side_effect=full), contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(main(["faulty", "-o", "full", "--folds", "0", "-q"]), 1)
        self.assertRegex(said.getvalue(), r"^audit: .*/full/thumbs/0/\d+.jpg: No space left on device\n$")

    def test_reader(self):
        os.makedirs("records", exist_ok=True)
        pixels = np.random.default_rng(6).integers(0, 256, (3, 32, 32, 3), np.uint8)
        with open("records/data_batch_1.bin", "wb") as file:
            for k in range(3):
                file.write(bytes([k]) + pixels[k].transpose(2, 0, 1).tobytes())
        found = listing.list_images("records")
        self.assertEqual((found.files[2], found.label(2), found.kind), ("data_batch_1.bin[2]", "bird", "cifar10"))
        reader = Reader("records")
        np.testing.assert_array_equal(np.asarray(reader.open("data_batch_1.bin[2]")), pixels[2])
        from cresnet import _packed
        _packed.write("records/val.crpk", pixels, np.arange(3), ["a", "b", "c"])
        np.testing.assert_array_equal(np.asarray(reader.open("val.crpk[1]")), pixels[1])
        for name in ("data_batch_1.bin[3]", "val.crpk[3]", "none.jpg"):
            with self.assertRaises(OSError):
                reader.open(name)


class Ends(unittest.TestCase):
    @needs_extra
    @support.needs_library
    def test_names(self):
        """Names of images and classes that lists, tables and spreadsheets treat in another way."""
        odd, rows = [b"=a;b/=1.png", b" c, d/n\xff.png"], np.arange(4, dtype=np.float32).reshape(2, 2)
        for name in odd:
            os.makedirs(os.path.join(b"names", os.path.dirname(name)), exist_ok=True)
            for number in range(8):
                scene(number + 50 * odd.index(name)).save(os.fsdecode(os.path.join(b"names", name.replace(b".png", b".png" if not number else b"%d.png" % number))))
        got = in_order(["./=a;b/=1.png", " c, d/n\ufffd.png"], rows, [os.fsdecode(name) for name in odd], "rows")
        np.testing.assert_array_equal(got, rows)
        reader = Reader("names")
        self.assertEqual(reader.path(" c, d/n\ufffd.png"), os.path.join("names", os.fsdecode(odd[1])))
        found = cresnet.audit("names", output="names-audit", folds=2, epochs=1, progress=False)
        self.assertEqual(len(rows_of("names-audit/ranking.csv")), 16)
        os.symlink("nowhere", "names/=a;b/link.png")  # the program lists neither
        os.symlink("..", "names/=a;b/up")
        self.assertEqual(len(listing.list_images("names")), 16)
        os.rename("names/=a;b/=1.png", "names/=a;b/1\n2.png")
        with self.assertRaisesRegex(cresnet.ArgumentError, "line break"):
            cresnet.audit("names", output="names-audit", folds=2, epochs=1, progress=False)
        self.assertEqual(found.images, 16)

    @needs_extra
    def test_one_class(self):
        os.makedirs("empty/a", exist_ok=True)
        with self.assertRaisesRegex(cresnet.ArgumentError, "two classes"):
            cresnet.audit("empty", output="not-made")
        self.assertFalse(os.path.exists("not-made"))

    def test_interrupted(self):
        code = "import sys, cresnet._audit as a; a.audit = lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt); import cresnet.audit; sys.exit(cresnet.audit.main(['empty']))"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual((ran.returncode, ran.stderr.count("\n")), (130, 1), ran.stderr)
        self.assertIn("audit: interrupted", ran.stderr)

    def test_missing(self):
        os.makedirs("empty/a", exist_ok=True)
        code = "import sys; sys.modules['faiss'] = None; sys.modules['PIL'] = None; import cresnet; cresnet.audit('empty')"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertIn('pip install "cresnet[audit]"', ran.stderr)


if __name__ == "__main__":
    support.main()
