#!/usr/bin/env python3
"""test_from_parquet.py: python -m cresnet.from_parquet on files with and without the class names of Hugging Face's datasets; the archives are read
by Python's tarfile and by the program. Ends with "N passed, N failed, N skipped"."""
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import unittest

import support
from support import BIN
from cresnet import from_parquet

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/tools"))
import png

NAMES = ["tabby cat", "dog", "zebra"]


def image(k):
    png.write("one.png", 6, 5, lambda x, y: (40 * k % 256, 20 * x, 30 * y))
    with open("one.png", "rb") as file:
        return file.read()


def write(path, labels, names=None, columns=("image", "label"), typed=True, **change):
    import pyarrow as pa
    import pyarrow.parquet as pq
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    images = [{"bytes": image(k), "path": f"{k}.png"} for k in range(len(labels))]
    for k, value in change.items():
        images[int(k[1:])] = value
    table = pa.table({columns[0]: images, "caption": ["x"] * len(labels), columns[1]: labels})
    if names:
        feature = {"names": names, "_type": "ClassLabel"}
        info = {"info": {"features": {columns[0]: {"_type": "Image"}, columns[1]: [feature] if isinstance(labels[0], list) else feature}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path)


def members(path):
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


@unittest.skipUnless(importlib.util.find_spec("pyarrow"), "no pyarrow")
class FromParquet(unittest.TestCase):
    def test_class_names(self):
        write("hf/train-00000-of-00002.parquet", [2, 0, 1, -1], NAMES, ("img", "fine_label"))
        write("hf/train-00001-of-00002-0123abc.parquet", [1, 1], NAMES, ("img", "fine_label"))
        write("hf/test-00000-of-00001.parquet", [0, 2], NAMES, ("img", "fine_label"))
        ran = subprocess.run([sys.executable, "-m", "cresnet.from_parquet", *sorted(os.path.join("hf", name) for name in os.listdir("hf")), "out", "--archive-bytes", "150"],
                             capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("train: 5 samples, 1 rows without a label left out", ran.stdout)
        archives = sorted(name for name in os.listdir("out") if name.endswith(".tar"))
        self.assertGreater(len(archives), 3)
        found = {}
        for name in archives:
            if name.startswith("train"):
                found.update(members(f"out/{name}"))
        self.assertEqual([found[f"{k:08d}.cls"] for k in range(5)], [b"2", b"0", b"1", b"1", b"1"])
        self.assertEqual([found[f"{k:08d}.png"] for k in range(5)], [image(k) for k in (0, 1, 2, 0, 1)])
        said = subprocess.run([BIN, "data", "--json", "-q", "tiny.ini", "data.kind=tar", "data.root=out", "data.train_images=0", "data.val_images=0"], capture_output=True, text=True)
        self.assertEqual(json.loads(said.stdout)["classes"], NAMES, said.stderr)
        self.assertEqual([json.loads(said.stdout)[split]["images"] for split in ("train", "val")], [5, 2])

    def test_other_labels(self):
        write("plain/train/0000.parquet", ["b", "a"])
        write("several-0-of-1.parquet", [[0, 2], [1]], NAMES)
        self.assertEqual(from_parquet.convert(["plain/train/0000.parquet"], "words"), {"train": (2, 0)})
        self.assertEqual(members("words/train-00000.tar")["00000000.cls"], b"b")
        self.assertFalse(os.path.exists("words/classes.txt"))
        from_parquet.convert(["several-0-of-1.parquet"], "lists")
        self.assertEqual(json.loads(members("lists/several-00000.tar")["00000000.json"]), {"label": [0, 2]})

    def test_mistakes(self):
        write("named.parquet", [0, 1], NAMES)
        write("others.parquet", [0, 1], NAMES[:2])
        write("columns.parquet", [0, 1], None, ("photo", "class"))
        write("large.parquet", [0, 3], NAMES)
        write("external.parquet", [0, 1], r1={"bytes": None, "path": "/a/b.png"})
        write("gif.parquet", [0, 1], r1={"bytes": b"GIF89a", "path": "b.gif"})
        write("line.parquet", [0, 1], ["a\nb", "c"])
        with open("no.parquet", "w", encoding="utf-8") as file:
            file.write("no")
        for files, text in ((["named.parquet", "others.parquet"], "others.parquet: its class names are not those of named.parquet"), (["columns.parquet"], "--image"),
                            (["large.parquet"], "row 1: the label 3"), (["external.parquet"], "only the path /a/b.png"), (["gif.parquet"], "row 1: no image"),
                            (["line.parquet"], "control characters"), (["no.parquet"], "cannot be read as Parquet"), (["none.parquet"], "none.parquet")):
            with self.assertRaises(from_parquet.ConversionError) as caught:
                from_parquet.convert(files, f"bad-{files[0]}")
            self.assertIn(text, str(caught.exception))
            self.assertEqual([name for name in os.listdir(f"bad-{files[0]}") if name.endswith(".tar")], [])
        from_parquet.convert(["named.parquet"], "twice")
        with self.assertRaises(from_parquet.ConversionError):
            from_parquet.convert(["named.parquet"], "twice")
        from_parquet.convert(["columns.parquet"], "given", image="photo", label="class")
        self.assertEqual(from_parquet.main(["no.parquet", "main"]), 1)


class WithoutPyarrow(unittest.TestCase):
    def test_missing(self):
        code = "import sys; sys.modules['pyarrow'] = None; sys.modules['pyarrow.parquet'] = None; from cresnet import from_parquet; sys.exit(from_parquet.main(['a', 'b']))"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(ran.returncode, 1)
        self.assertIn('pip install "cresnet[parquet]"', ran.stderr)


if __name__ == "__main__":
    support.main()
