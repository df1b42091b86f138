#!/usr/bin/env python3
"""test_beside_torch.py: the library in a process that uses PyTorch, which brings its own OpenMP runtime and oneDNN: the same logits, whichever computes
first, and threads of both that compute at once. Skipped without PyTorch."""
import os
import subprocess
import sys
import unittest

import support
import peers

if not peers.with_modules(os.path.abspath(sys.argv[0]), "numpy", "torch"):
    print("skip: no PyTorch\n0 passed, 0 failed, 1 skipped")
    sys.exit(support.SKIP)
import cresnet

SETUP = """
import threading
import numpy as np
pixels = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
def logits():
    with cresnet.Model("run", device="cpu", max_batch=4, threads=2) as model:
        return model.classify_images(list(pixels), logits=True).logits
def product():
    torch.set_num_threads(2)
    layer = torch.nn.Conv2d(3, 64, 3)
    x = torch.ones(8, 3, 64, 64, requires_grad=True)
    layer(x).sum().backward()
    a = torch.randn(300, 300)
    return bool(torch.isfinite(x.grad).all()) and torch.allclose(a @ torch.eye(300), a, atol=1e-6)
"""
ORDERS = {
    "torch first": "import torch, cresnet\n" + SETUP + "assert product()\nfound = logits()\nassert product()\n",
    "cresnet first": "import cresnet\nfrom cresnet import _library\n_library.lib()\nimport torch\n" + SETUP +
                     "found = logits()\nassert product()\nassert (logits() == found).all()\n",
    "both at once": "import torch, cresnet\n" + SETUP + "results = []\n"
                    "workers = [threading.Thread(target=lambda: results.append(all(product() for _ in range(20)))) for _ in range(2)]\n"
                    "[w.start() for w in workers]\nfound = logits()\n"
                    "for _ in range(5): assert (logits() == found).all()\n[w.join() for w in workers]\nassert results == [True, True]\n",
}


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@support.needs_library
class Torch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cresnet.train("tiny.ini", output="run", steps=5, progress=False)
        ran = python("import cresnet\n" + SETUP + "np.save('alone.npy', logits())")
        assert ran.returncode == 0, ran.stderr

    def test_same_logits(self):
        for name, code in ORDERS.items():
            with self.subTest(name):
                ran = python(code + "alone = np.load('alone.npy')\nassert (found == alone).all(), abs(found - alone).max()\n")
                self.assertEqual((ran.returncode, ran.stderr), (0, ""))

    def test_training(self):
        """The program is a process of its own: PyTorch's libraries are not in it."""
        ran = python("import torch, cresnet\nassert torch.ones(3).sum() == 3\n"
                     "run = cresnet.train('tiny.ini', output='with-torch', steps=5, progress=False)\n"
                     "assert open('with-torch/last/model.safetensors', 'rb').read() == open('run/last/model.safetensors', 'rb').read()\n")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))


if __name__ == "__main__":
    support.main()
