#!/usr/bin/env python3
"""check-words.py: keeps words that only this project once used out of the code, its output and its documents.

The table WORDS in check_words/table.py has one entry per coined word: regular expressions for the coined use, what to write
instead, and the kinds of text that each expression applies to. Ordinary uses of the same word (a row of a matrix, a CUDA thread
block, a swap of two values) stay legal: an expression matches the coined use only, or `allowed` names the files in which the word
is the field's own, with the reason.

Sources are split into identifiers (code without comments and string literals), comments and strings; Markdown is a document;
the path of every tracked file is checked as a file name. A space in an expression matches any white space, line breaks too.
A text may be excluded with a comment "check-words: off (reason)", up to a comment "check-words: on"; the reason is required,
and the number of such regions is printed.

  scripts/check-words.py               check the tree; one check per entry; exit status 1 if a word is found
  scripts/check-words.py --summary     findings per entry and folder
  scripts/check-words.py --self-test   plant every entry and demand that it is found; check samples that are legal
  scripts/check-words.py --only NAME   as the first form, but only the entries whose name contains NAME
"""
import fnmatch
import re
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # leaves no __pycache__ in the tree

from check_words.samples import INNOCENT
from check_words.table import HISTORY, WORDS
from check_words.texts import kinds_of, split
from check_words.word import COMMENT, DOCUMENT, IDENTIFIER, NAME, STRING, matches

ROOT = Path(__file__).resolve().parent.parent

# ---- what is read ---------------------------------------------------------------------------------------------------

FOLDERS = ("src", "cuda", "include", "tests", "tools", "examples", "python", "scripts", "cmake", "configs", "docs",
           "packaging", "datasets", "checkpoints")
NAMES_ONLY = ("tests/golden/*", "tests/fuzz/corpus/*", "tests/unit/*/golden/*")  # recorded data: only the file names are checked
NOT_READ = ("scripts/check-words.py", "scripts/check_words/table.py", "scripts/check_words/samples.py")

# ---- checking -------------------------------------------------------------------------------------------------------

def globs(patterns):
    return re.compile("|".join(fnmatch.translate(p) for p in patterns)) if patterns else None


def compile_table():
    for word in WORDS:
        word.expressions = [(e, kinds, globs(only), globs(but), hints) for e, kinds, only, but, hints in word.expressions]
        word.allowed = [(globs([glob]), re.compile(line, re.I) if line else None, why) for glob, line, why in (*word.allowed, *HISTORY)]


def is_allowed(word, path, line):
    return any(where.match(path) and (text is None or text.search(line)) for where, text, _ in word.allowed)


def check_file(path, text, words, name=True):
    """All findings of one file: (word, line, the words found, kind). text None: only the file's name."""
    found, regions = [], 0
    if name:
        for word in words:
            for expression, kinds, only, but, hints in word.expressions:
                if NAME in kinds and expression.search(path) and not (only and not only.match(path)) and not (but and but.match(path)) \
                        and not is_allowed(word, path, ""):
                    found.append((word, 1, path.rsplit("/", 1)[-1], NAME))
                    break
    if text is None:
        return found, 0
    texts, regions = split(path, text)
    lines = None
    for word in words:
        seen = set()
        for expression, kinds, only, but, hints in word.expressions:
            if only and not only.match(path) or but and but.match(path):
                continue
            for kind in kinds:
                if kind == NAME or not texts[kind].pieces:
                    continue
                for match in matches(expression, hints, texts[kind].whole(), texts[kind].lower):
                    line = texts[kind].line(match.start())
                    if (line, kind) in seen:
                        continue
                    lines = lines or text.split("\n")
                    if is_allowed(word, path, lines[min(line, len(lines)) - 1]):
                        continue
                    seen.add((line, kind))
                    found.append((word, line, " ".join(match.group().replace("\0", " ").split()), kind))
    return found, regions


def tree():
    """Path and text of each file; text None where only the name is checked."""
    try:
        listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True, check=True).stdout
        paths = listed.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):  # a source archive has no git
        paths = [p.relative_to(ROOT).as_posix() for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.is_file()]
        paths += [p.name for p in ROOT.glob("*") if p.is_file()]
    for path in sorted(set(paths)):
        if not path or path in NOT_READ or not (ROOT / path).is_file() or "/" in path and path.split("/")[0] not in FOLDERS:
            continue
        data = any(fnmatch.fnmatch(path, glob) for glob in NAMES_ONLY) and not path.endswith(".py")
        if data or not (path.endswith(".md") or kinds_of(path)):
            yield path, None
        else:
            yield path, (ROOT / path).read_text(encoding="utf-8", errors="replace")


def print_summary(findings):
    tables = {}
    for path, (word, _, _, kind) in findings:
        pieces = path.split("/")
        folder = "/".join(pieces[:2]) if len(pieces) > 2 else pieces[0] if len(pieces) > 1 else "top"
        counts = tables.setdefault(word.name, {})
        counts[folder] = counts.get(folder, 0) + 1
        counts["=" + kind] = counts.get("=" + kind, 0) + 1
    print(f"{'word':<34}{'all':>6}{'ident':>7}{'comm':>6}{'string':>7}{'doc':>6}{'file':>6}  folders")
    for word in WORDS:
        counts = tables.get(word.name, {})
        kinds = [counts.get("=" + k, 0) for k in (IDENTIFIER, COMMENT, STRING, DOCUMENT, NAME)]
        folders = sorted(((n, f) for f, n in counts.items() if f[0] != "="), reverse=True)
        print(f"{word.name[:33]:<34}{sum(kinds):>6}{kinds[0]:>7}{kinds[1]:>6}{kinds[2]:>7}{kinds[3]:>6}{kinds[4]:>6}  "
              + " ".join(f"{f}:{n}" for n, f in folders[:8]))
    print(f"{len(findings)} findings")


def self_test():
    wrap = {IDENTIFIER: ("src/training/x.c", "void f(void) {{ {} }}\n"), COMMENT: ("src/training/x.c", "/* {} */\nint x;\n"),
            STRING: ("src/training/x.c", "const char *s = \"{}\";\n"), DOCUMENT: ("docs/x.md", "{}\n")}
    failed = passed = 0

    def expect(good, message):
        nonlocal failed, passed
        if good:
            passed += 1
        else:
            failed += 1
            print("FAIL " + message)

    for word in WORDS:
        if not word.plants:
            expect(False, f"{word.name}: has no sample")
        for kind, sample in word.plants:
            if kind == NAME:
                found, _ = check_file(sample, None, [word])
            else:
                path, form = wrap[kind]
                found, _ = check_file(path, form.format(sample), [word])
            expect(found, f"{word.name}: planted as {kind}, not found: {sample}")
    # Reported line, a phrase that goes on in the next line, and text of one kind that is not another's.
    found, _ = check_file("src/a.c", "int x;\n/* These are equal to\n * the bit. */\n", WORDS)
    expect(any(w.name == "to the bit" and line == 2 for w, line, _, _ in found), "a phrase over two lines of a comment")
    found, _ = check_file("src/a.c", "// These are equal to\n// the bit.\n", WORDS)
    expect(any(w.name == "to the bit" for w, *_ in found), "a phrase over two // comments")
    found, _ = check_file("src/a.c", "f(\"equal to \"\n  \"the bit\");\n", WORDS)
    expect(any(w.name == "to the bit" for w, *_ in found), "a phrase over two string literals")
    found, _ = check_file("scripts/a.sh", "x=1 # the fullest moment\n", WORDS)
    expect(any(w.name == "fullest" for w, *_ in found), "a comment of a shell script")
    found, _ = check_file("scripts/a.py", '"""Judged.\n\nfullest\n"""\n', WORDS)
    expect(any(w.name == "fullest" and line == 3 for w, line, _, _ in found), "a docstring")
    found, regions = check_file("src/a.c", "/* check-words: off (old keys) */\nint fullest;\n/* check-words: on */\nint hopeless;\n", WORDS)
    expect(regions == 1 and [w.name for w, *_ in found] == ["hopeless"], "an excluded region")
    found, regions = check_file("src/a.c", "/* check-words: off */\nint fullest;\n", WORDS)
    expect(regions == 0 and found, "an excluded region without a reason")
    for path, sample in INNOCENT:
        found, _ = check_file(path, sample, WORDS)
        expect(not found, f"{path}: legal text is reported as {', '.join(w.name + ' (' + t + ')' for w, _, t, _ in found)}: {sample.strip()}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


def main():
    compile_table()
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        return self_test()
    words, summary = WORDS, arguments == ["--summary"]
    if len(arguments) == 2 and arguments[0] == "--only":
        words = [w for w in WORDS if arguments[1] in w.name]
    elif arguments and not summary:
        print(__doc__, file=sys.stderr)
        return 2
    findings, regions, files = [], 0, 0
    for path, text in tree():
        found, excluded = check_file(path, text, words)
        findings += [(path, f) for f in found]
        regions, files = regions + excluded, files + 1
    if summary:
        print_summary(findings)
        return 0
    for path, (word, line, text, kind) in sorted(findings, key=lambda f: (f[0], f[1][1])):
        print(f"{path}:{line}: {word.name}: '{text}' ({kind}): write {word.write} instead")
    failed = len({f[0].name for _, f in findings})
    print(f"{files} files, {len(findings)} findings, {regions} excluded regions")
    print(f"{len(words) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
