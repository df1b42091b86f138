#!/usr/bin/env python3
"""check-version.py: one version number everywhere.

The version number is set in CMakeLists.txt, in project(cresnet VERSION ...). The program and the package take it from there.
Other tools read it from the files in PATTERNS, which repeat it. This script fails when
one of them has another version, when the two changelogs have different dates, or when a source file defines CR_VERSION itself.

  scripts/check-version.py               check the source tree, print the version, exit 1 on a mismatch
  scripts/check-version.py --self-test   put each kind of mistake into a copy of the texts and check that it is found
"""
import re
import sys
from email.utils import parsedate_to_datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NUMBER = r"(\d+\.\d+\.\d+)"
CMAKE, CHANGES, DEBIAN, DOCKER = "CMakeLists.txt", "CHANGELOG.md", "packaging/changelog", "packaging/Dockerfile"
PYTHON, CONDA, MAN = "python/cresnet/_version.py", "packaging/conda/recipe.yaml", "packaging/cresnet.3"
# The first match in each file is the newest version.
PATTERNS = {
    CMAKE: rf"^project\(cresnet VERSION {NUMBER}[ )]",
    CHANGES: rf"^## \[{NUMBER}\]",
    DEBIAN: rf"^cresnet \({NUMBER}\) ",
    DOCKER: rf'org\.opencontainers\.image\.version="{NUMBER}"',
    PYTHON: rf'^__version__ = "{NUMBER}"',
    CONDA: rf'^  version: "{NUMBER}"',
    MAN: rf'^\.TH CRESNET 3 "" "cresnet {NUMBER}"',
}


def read_tree():
    """Text of each file to check, by its path from the root of the source tree."""
    paths = [ROOT / name for name in PATTERNS]
    for folder in ("src", "cuda", "include"):
        paths += sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in (".c", ".h", ".cu", ".cuh"))
    return {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in paths if p.is_file()}


def newest_date(name, text):
    """Date of the newest entry of a changelog as YYYY-MM-DD, or None."""
    if name == CHANGES:
        match = re.search(rf"^## \[{NUMBER}\] - (\d{{4}}-\d\d-\d\d)", text, re.M)
        return match.group(2) if match else None
    match = re.search(r"^ -- .*>  (.*)$", text, re.M)
    try:
        return parsedate_to_datetime(match.group(1)).strftime("%Y-%m-%d") if match else None
    except (TypeError, ValueError):
        return None


def check(files):
    """(version of CMakeLists.txt or None, list of mistakes)"""
    found, mistakes = {}, []
    for name, pattern in PATTERNS.items():
        match = re.search(pattern, files.get(name, ""), re.M)
        if match:
            found[name] = match.group(1)
        else:
            mistakes.append(f"{name}: no version number found")
    version = found.get(CMAKE)
    for name, other in found.items():
        if version and other != version:
            mistakes.append(f"{name}: version {other}, but {CMAKE} has {version}")
    dates = {name: newest_date(name, files.get(name, "")) for name in (CHANGES, DEBIAN)}
    for name, date in dates.items():
        if not date:
            mistakes.append(f"{name}: the newest entry has no date")
    if all(dates.values()) and dates[CHANGES] != dates[DEBIAN]:
        mistakes.append(f"{DEBIAN}: date {dates[DEBIAN]}, but {CHANGES} has {dates[CHANGES]}")
    for name, text in files.items():
        if re.search(r"^\s*#\s*define\s+CR_VERSION\b", text, re.M):
            mistakes.append(f"{name}: defines CR_VERSION; {CMAKE} sets it")
    return version, mistakes


def self_test():
    files = read_tree()
    version, mistakes = check(files)
    if mistakes:
        print("\n".join(mistakes))
        return 1
    date = newest_date(CHANGES, files[CHANGES])
    changed = [(name, version, "9.8.7") for name in PATTERNS]
    changed += [(name, version, "none") for name in PATTERNS]
    changed += [(CHANGES, date, "2001-01-01"), (CHANGES, f" - {date}", "")]
    failed = 0
    for name, old, new in changed:
        # Only the first occurrence that the check reads is replaced.
        start = re.search(PATTERNS[name], files[name], re.M).start()
        text = files[name][:start] + files[name][start:].replace(old, new, 1)
        if text == files[name] or not check({**files, name: text})[1]:
            print(f"not found: {name} with '{new}' instead of '{old}'")
            failed += 1
    planted = {**files, "src/planted.h": '#define CR_VERSION "0.0.1"\n'}
    if not check(planted)[1]:
        print("not found: a definition of CR_VERSION in src/planted.h")
        failed += 1
    total = len(changed) + 1
    print(f"{total - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    version, mistakes = check(read_tree())
    print("\n".join(mistakes) if mistakes else f"version {version} in {', '.join(PATTERNS)}")
    print(f"{len(PATTERNS) - min(len(mistakes), len(PATTERNS))} passed, {len(mistakes)} failed, 0 skipped")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
