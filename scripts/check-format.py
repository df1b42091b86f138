#!/usr/bin/env python3
"""check-format.py: the C and CUDA files of the tree are formatted as .clang-format says, and not too long.

Three checks: clang-format 14 (Debian 12) changes no file; no line has more than 120 columns; no file of src and cuda has more
than 400 lines. Macro tables (*.def) are left out, because clang-format does not keep their columns. Tables in other files are
kept between "// clang-format off" and "// clang-format on". The first check is skipped where clang-format 14 is not installed.

  scripts/check-format.py               check the tree; list the files that differ; exit status 1 if a check fails
  scripts/check-format.py --fix [FILE...]   format the files (all without arguments) in place
  scripts/check-format.py --self-test   check that each kind of fault is found
CLANG_FORMAT names the program; the default is clang-format-14 or clang-format.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "cuda", "tests", "include", "examples", "tools")
SUFFIXES = (".c", ".h", ".cu", ".cuh")
COLUMNS, FILE_LINES, VERSION = 120, 400, 14
BATCH, WORKERS = 24, 2


def sources(root):
    """Paths of the files to check, relative to root, in order."""
    try:
        listed = subprocess.run(["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z", "--", *FOLDERS],
                                capture_output=True, check=True).stdout
        paths = listed.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):  # a source archive has no git
        paths = [p.relative_to(root).as_posix() for f in FOLDERS for p in (root / f).rglob("*") if p.is_file()]
    return sorted(p for p in set(paths) if p.endswith(SUFFIXES) and (root / p).is_file())


def find_formatter():
    """(program, None), or (None, why the check is skipped)."""
    names = [os.environ["CLANG_FORMAT"]] if os.environ.get("CLANG_FORMAT") else ["clang-format-14", "clang-format"]
    why = "clang-format is not installed"
    for name in names:
        program = shutil.which(name)
        if not program:
            continue
        said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
        version = re.search(r"version (\d+)", said)
        if version and int(version.group(1)) == VERSION:
            return program, None
        why = f"{name} is version {version.group(1) if version else '?'}, the tree is formatted by version {VERSION}"
    return None, why


def batches(paths):
    return [paths[i:i + BATCH] for i in range(0, len(paths), BATCH)]


def misformatted(root, paths, program):
    """[(path, first line that differs)]"""
    def one(batch):
        done = subprocess.run([program, "--style=file", "--dry-run", "-Werror", *batch], cwd=root, capture_output=True, text=True)
        found = re.findall(r"^([^:\n]+):(\d+):\d+: error: code should be clang-formatted", done.stderr, re.M)
        if done.returncode and not found:
            found = [(batch[0], f"1: {done.stderr.strip()[:200]}")]
        return found
    first = {}
    with ThreadPoolExecutor(WORKERS) as pool:
        for found in pool.map(one, batches(paths)):
            for path, line in found:
                first.setdefault(path, line)
    return sorted(first.items())


def check(root, quiet=False):
    """(passed, failed, skipped, messages)"""
    paths, messages, failed, skipped = sources(root), [], 0, 0
    wide, long = [], []
    for path in paths:
        lines = (root / path).read_text(encoding="utf-8", errors="replace").split("\n")
        over = [number for number, line in enumerate(lines, 1) if len(line.expandtabs(4)) > COLUMNS]
        if over:
            wide.append(f"{path}:{over[0]}: {len(over)} lines of more than {COLUMNS} columns")
        count = len(lines) - (lines[-1] == "")
        if path.startswith(("src/", "cuda/")) and count > FILE_LINES:
            long.append(f"{path}: {count} lines, {FILE_LINES} is the most: split it by concern")
    program, why = find_formatter()
    if program:
        differs = [f"{path}:{line}: clang-format changes it" for path, line in misformatted(root, paths, program)]
        failed += bool(differs)
        messages += differs
    else:
        skipped = 1
        messages.append(f"skipped: {why}")
    messages += wide + long
    failed += bool(wide) + bool(long)
    if not quiet:
        for message in messages:
            print(message)
        print(f"{len(paths)} files: {len(differs) if program else '?'} differ, {len(wide)} have wide lines, {len(long)} are too long")
    return 3 - failed - skipped, failed, skipped, messages


def fix(paths):
    program, why = find_formatter()
    if not program:
        print(why, file=sys.stderr)
        return 1
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda b: subprocess.run([program, "--style=file", "-i", *b], cwd=ROOT, check=True), batches(paths)))
    return 0


def self_test():
    passed = failed = skipped = 0
    formatter = find_formatter()[0]
    cases = [  # path, text, the fault that is expected, needs clang-format
        ("src/core/bad.c", "int  f( void ) {return 1;}\n", "clang-format changes it", True),
        ("cuda/norm/bad.cu", "__global__ void k(float*x){x[0]=1;}\n", "clang-format changes it", True),
        ("tests/unit/bad.h", "int  x ;\n", "clang-format changes it", True),
        ("src/core/wide.c", "/* " + "x" * 118 + " */\n", "more than 120 columns", False),
        ("cuda/norm/long.c", "int x;\n" * 401, "401 lines", False),
        ("src/core/good.c", "int f(void) {\n    return 1;\n}\n", None, False),
        ("src/core/most.c", "int x;\n" * 400, None, False),
        ("tests/unit/long.c", "int x;\n" * 500, None, False),
        ("src/graph/ops.def", "OP(  conv ,   1)\n" + "x" * 130 + "\n", None, False),
        ("src/core/table.c", "// clang-format off\nint  t[] = { 1,   2,\n            10,  20 };\n// clang-format on\n", None, False),
        ("src/core/macro.h", "/* clang-format off */\n#define KEYS(X) \\\n    X(a,    1) \\\n    X(long, 2)\n/* clang-format on */\n", None, False),
        ("scripts/bad.c", "int  x ;\n", None, False),
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / ".clang-format").write_text((ROOT / ".clang-format").read_text())
        for path, text, want, needs in cases:
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            if needs and not formatter:
                skipped += 1
                continue
            found = [m for m in check(root, quiet=True)[3] if m.startswith(path)]
            if not found if want is None else any(want in m for m in found):
                passed += 1
            else:
                failed += 1
                print(f"FAIL {path}: expected {want}, found {found}")
            file.unlink()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        return self_test()
    if arguments[:1] == ["--fix"]:
        return fix([os.path.relpath(Path(p).resolve(), ROOT) for p in arguments[1:]] or sources(ROOT))
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    passed, failed, skipped, _ = check(ROOT)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
