#!/usr/bin/env python3
"""test_guide.py: the examples of docs/guides/python.md run, in order, with fewer images, and have the types that the package states."""
import importlib.util
import os
import re
import subprocess
import sys
import unittest

import support
from support import ROOT

EXTRA = all(importlib.util.find_spec(module) for module in ("faiss", "PIL", "sklearn"))


def blocks(page):
    with open(f"{ROOT}/docs/guides/{page}.md", encoding="utf-8") as guide:
        return re.findall(r"^```python\n(.*?)^```", guide.read(), re.M | re.S)


BLOCKS = blocks("python")


class Guide(unittest.TestCase):
    @support.needs_library
    @unittest.skipUnless(EXTRA, "no faiss, Pillow and scikit-learn")
    def test_audit(self):
        os.makedirs("audit-guide/configs")
        os.makedirs("audit-guide/build")
        os.symlink(support.BIN, "audit-guide/build/cresnet")
        with open(f"{ROOT}/configs/demo.ini", encoding="utf-8") as file, open("audit-guide/configs/demo.ini", "w", encoding="utf-8") as small:
            small.write(file.read().replace("kind = shapes", "kind = shapes\ntrain_images = 320\nval_images = 100"))
        code = "\n".join(blocks("audit")).replace("epochs=20", "epochs=1").replace("train_images=1000", "train_images=300")
        code = code.replace("range(10, 14)", "range(10, 13)")
        ran = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False, cwd="audit-guide")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        for line in ("audit/index.html", "cresnet.Errors(", "a star at"):
            self.assertIn(line, ran.stdout)

    @support.needs_library
    def test_runs(self):
        os.mkdir("configs")
        with open(f"{ROOT}/configs/demo.ini", encoding="utf-8") as file:
            demo = file.read()
        small = demo  # but for the trainings that the guide stops, which must not end before
        for of, by in (("batch = 64", "batch = 16"), ("kind = shapes", "kind = shapes\ntrain_images = 320\nval_images = 100"),
                       ("epochs = 10", "epochs = 100000")):
            self.assertIn(of, small)
            small = small.replace(of, by)
        with open("configs/demo.ini", "w", encoding="utf-8") as file:
            file.write(small)
        ran = subprocess.run([sys.executable, "-B", "-c", "\n".join(BLOCKS)], capture_output=True, text=True, check=False,
                             env={**os.environ, "OMP_NUM_THREADS": "2"})
        self.assertEqual(ran.returncode, 0, ran.stderr)
        for line in ("stopped", "True", "'checker', 'circle'", "['vertical' 'vertical']"):
            self.assertIn(line, ran.stdout)

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "no mypy")
    def test_types(self):
        with open("guide.py", "w", encoding="utf-8") as file:
            file.write("\n".join(BLOCKS + blocks("audit")))
        for paths in (["guide.py"], [f"{ROOT}/python/cresnet"]):
            ran = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", "mypy", *paths], capture_output=True, text=True,
                                 check=False, env={**os.environ, "MYPYPATH": f"{ROOT}/python"})
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)


if __name__ == "__main__":
    support.main()
