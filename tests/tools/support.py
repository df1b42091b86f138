"""What tests/test_*.py that drive the built program share: the program, counted checks, an empty folder to work in with nothing of the
user's in reach."""
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("CRESNET_BIN", f"{ROOT}/build/cresnet")
# The section of a model that takes steps in no time.
TINY_MODEL = """[model]
arch = custom
block = basic
stem = cifar
depths = 1,1
widths = 4,8
"""
counted = {"passed": 0, "failed": 0, "skipped": 0}


def cresnet(*args):
    return subprocess.run([BIN, *args], capture_output=True, text=True, errors="replace", timeout=300)


def check(name, good, what=""):
    counted["passed" if good else "failed"] += 1
    if not good:
        print(f"FAIL {name} {str(what)[:800]}")


def skip(what):
    counted["skipped"] += 1
    print(f"skip {what}")


def run(test):
    """Calls test() in the folder, ends the program with the line that CTest's logs are summed up by."""
    work = tempfile.mkdtemp()
    try:
        os.chdir(work)
        os.environ.update(HOME=work, XDG_CACHE_HOME=work + "/cache", GOMP_SPINCOUNT="10000")
        test()
    finally:
        os.chdir("/")
        shutil.rmtree(work)
    print(", ".join(f"{count} {name}" for name, count in counted.items()))
    sys.exit(1 if counted["failed"] else 0)
