"""Of the tests of the Python package: an interpreter with NumPy, the built program ($CRESNET_BIN) and its library, an empty folder."""
import atexit
import os
import shutil
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [f"{ROOT}/python", f"{ROOT}/tests/tools"]
import peers

SKIP = 77
BIN = os.path.abspath(os.environ.get("CRESNET_BIN") or f"{ROOT}/build/cresnet")
LIBRARY = os.path.join(os.path.dirname(BIN), "libcresnet.so")
CONFIG = """[model]
arch = custom
block = basic
depths = 1
widths = 8
stem = cifar
[data]
kind = shapes
root = {root}
train_images = 160
val_images = 40
[train]
batch = 16
epochs = 2
device = cpu
threads = 1
log_every = 5
"""

# An interpreter with all that some tests need, or at least NumPy.
MODULES = (("numpy", "sklearn", "ipykernel", "mypy", "faiss", "PIL"), ("numpy", "sklearn", "ipykernel", "mypy"), ("numpy",))
if not any(peers.with_modules(os.path.abspath(sys.argv[0]), *modules) for modules in MODULES):
    print("skip: no NumPy\n0 passed, 0 failed, 1 skipped")
    sys.exit(SKIP)
WORK = tempfile.mkdtemp()
atexit.register(shutil.rmtree, WORK, True)
os.chdir(WORK)
os.environ.update(CRESNET=BIN, CRESNET_LIBRARY=LIBRARY, HOME=WORK, XDG_CACHE_HOME=f"{WORK}/cache", PYTHONPATH=f"{ROOT}/python")
with open("tiny.ini", "w", encoding="utf-8") as file:
    file.write(CONFIG.format(root=f"{WORK}/shapes"))
needs_library = unittest.skipUnless(os.path.exists(LIBRARY) and not os.environ.get("CRESNET_SANITIZE"), "no libcresnet without a sanitizer")


def main():
    """Runs the cases of the script; the last line is that of all tests."""
    ran = unittest.main(exit=False, verbosity=int(os.environ.get("VERBOSE", "1"))).result
    failed = len(ran.failures) + len(ran.errors)
    print(f"{ran.testsRun - failed - len(ran.skipped)} passed, {failed} failed, {len(ran.skipped)} skipped")
    sys.exit(failed > 0)
