"""Helpers of tests that run the built program: the program, counted checks, and an empty working folder that hides the user's files. To be
imported before the modules of tests/tools."""
import csv
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/tests/tools")
import peers

BIN = os.environ.get("CRESNET_BIN", f"{ROOT}/build/cresnet")
# The [model] section of a network whose steps take almost no time.
TINY_MODEL = """[model]
arch = custom
block = basic
stem = cifar
depths = 1,1
widths = 4,8
"""
counted = {"passed": 0, "failed": 0, "skipped": 0}


def cresnet(*args):
    return subprocess.run([BIN, *args], capture_output=True, text=True, errors="replace", timeout=900)


def need(*modules):
    """Runs the test with an interpreter that has the modules; skips it where there is none."""
    if not peers.with_modules(os.path.abspath(sys.modules["__main__"].__file__), *modules):
        print(f"skip no python3 with {', '.join(modules)}\n0 passed, 0 failed, 1 skipped")
        sys.exit(77)


def good(name, *args):
    """A command that must succeed."""
    return ends(name, 0, [], *args, "-q")


def refused(name, code, text, *args):
    """A command that must end with the exit status, and with the text in its one message."""
    ran = cresnet(*args, "-q")
    lines = sum(line.startswith("cresnet ") for line in ran.stderr.splitlines())
    check(name, ran.returncode == code and text in ran.stderr and lines == 1, (ran.returncode, ran.stderr))


def ends(name, code, texts, *args):
    """A command that must end with the exit status, and print a text or a list of them."""
    ran = cresnet(*args)
    missing = [text for text in ([texts] if isinstance(texts, str) else texts) if text not in ran.stdout + ran.stderr]
    check(name, ran.returncode == code and not missing, (ran.returncode, missing, ran.stderr))
    return ran


def predicted(run, folder, *args):
    """The probabilities of `predict`, [images][classes], and its messages."""
    ran = cresnet("predict", run, folder, "--csv", "-", *args)
    check("predict", ran.returncode == 0, ran.stderr)
    rows = list(csv.reader(ran.stdout.splitlines()))
    first = next((i for i, name in enumerate(rows[0]) if name.startswith("p:")), 0) if rows else 0
    return [[float(p) for p in row[first:]] for row in rows[1:]], ran.stderr


def check(name, good, what=""):
    counted["passed" if good else "failed"] += 1
    if not good:
        print(f"FAIL {name} {str(what)[:800]}")


def skip(what):
    counted["skipped"] += 1
    print(f"skip {what}")


def run(test):
    """Calls test() in the folder and prints the line "N passed, N failed, N skipped", which scripts/test.sh adds up."""
    work = tempfile.mkdtemp()
    try:
        os.chdir(work)
        os.environ.update(HOME=work, XDG_CACHE_HOME=work + "/cache")
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
        test()
    finally:
        os.chdir("/")
        shutil.rmtree(work)
    print(", ".join(f"{count} {name}" for name, count in counted.items()))
    sys.exit(1 if counted["failed"] else 0)
