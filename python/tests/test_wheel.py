#!/usr/bin/env python3
"""test_wheel.py: what the wheels add to the package, without building one: the console script, python -m, the warning when both are installed."""
import os
import shutil
import subprocess
import sys
import unittest
import warnings

import support
from support import BIN, ROOT, WORK
from cresnet import _distributions

PACKAGE = os.path.join(ROOT, "python", "cresnet")


def site_packages(name, *distributions):
    """A folder like site-packages, with the package and these distributions; the program prints its arguments."""
    folder = os.path.join(WORK, name)
    shutil.copytree(PACKAGE, os.path.join(folder, "cresnet"), ignore=shutil.ignore_patterns("__pycache__"))
    for distribution in distributions:
        os.mkdir(os.path.join(folder, f"{distribution}-0.4.0.dist-info"))
    program = os.path.join(folder, "cresnet", "cresnet")
    with open(program, "w", encoding="utf-8") as file:
        file.write('#!/bin/sh\nprintf "%s|" "$@"\nexit 3\n')
    os.chmod(program, 0o755)
    return folder


def python(folder, *arguments):
    environment = {key: value for key, value in os.environ.items() if key not in ("CRESNET", "CRESNET_LIBRARY")}
    return subprocess.run([sys.executable, *arguments], env={**environment, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
                          capture_output=True, text=True, check=False)


class Wheel(unittest.TestCase):
    def test_both_distributions(self):
        ran = python(site_packages("both", "cresnet", "cresnet_cpu"), "-c", "import cresnet")
        self.assertEqual(ran.returncode, 0)
        self.assertIn("cresnet and cresnet-cpu are both installed", ran.stderr)
        self.assertIn("pip uninstall -y cresnet cresnet-cpu", ran.stderr)

    def test_one_distribution(self):
        for name in ("cresnet", "cresnet_cpu"):
            ran = python(site_packages("only-" + name, name), "-W", "error", "-c", "import cresnet")
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _distributions.warn_about_conflict()

    def test_console_script(self):
        folder = site_packages("console", "cresnet_cpu")
        os.mkdir(os.path.join(WORK, "bin"))
        script = shutil.copy(os.path.join(ROOT, "python", "console.py"), os.path.join(WORK, "bin", "cresnet"))
        ran = python(folder, script, "train", "a b", "")
        self.assertEqual((ran.stdout, ran.returncode), ("train|a b||", 3))
        os.remove(os.path.join(folder, "cresnet", "cresnet"))
        ran = python(folder, script, "help")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("cannot be started: No such file or directory", ran.stderr)
        ran = python(WORK, "-S", script, "help")
        self.assertIn("has no package cresnet", ran.stderr)

    def test_console_script_loads_no_numpy(self):
        with open(os.path.join(ROOT, "python", "console.py"), encoding="utf-8") as file:
            text = file.read().replace("os.execv", "print('numpy' in sys.modules) or os.execv")
        self.assertNotEqual(text.count("numpy"), 0)
        self.assertEqual(python(site_packages("light"), "-c", text).stdout.split("\n")[0], "False")

    def test_module(self):
        ran = python(site_packages("module", "cresnet"), "-m", "cresnet", "plan", "x.ini")
        self.assertEqual((ran.stdout, ran.returncode), ("plan|x.ini|", 3))

    def test_module_without_wheel(self):
        ran = subprocess.run([sys.executable, "-m", "cresnet", "--version"], capture_output=True, text=True, check=False)
        self.assertEqual(ran.stdout, subprocess.run([BIN, "--version"], capture_output=True, text=True, check=False).stdout)


if __name__ == "__main__":
    support.main()
