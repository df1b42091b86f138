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

with open(f"{ROOT}/docs/guides/python.md", encoding="utf-8") as guide:
    BLOCKS = re.findall(r"^```python\n(.*?)^```", guide.read(), re.M | re.S)


class Guide(unittest.TestCase):
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
            file.write("\n".join(BLOCKS))
        for paths in (["guide.py"], [f"{ROOT}/python/cresnet"]):
            ran = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", "mypy", *paths], capture_output=True, text=True,
                                 check=False, env={**os.environ, "MYPYPATH": f"{ROOT}/python"})
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)


if __name__ == "__main__":
    support.main()
