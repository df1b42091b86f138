#!/usr/bin/env python3
"""check-docs.py: the commands and links of README.md, docs/ and tools/ work, and the pages keep their limits.

Commands are the lines of fenced blocks that are tagged sh. The plain blocks of a page run in order, in one shell, in a
temporary copy of the repository (without its sources) whose build/ holds links to the programs of a build; a page stops at its first failing
command. Blocks with a second tag are not run and count as skipped:
  sh gpu       needs a GPU                      sh network   downloads or installs something
  sh data      needs a data set or files        sh build     compiles, which takes minutes
  sh cuda      runs where the program is built with CUDA; needs no GPU
Blocks of other languages (text, ini, c, ...) are ignored; a block without a language is an error. All pages share one cache folder
(XDG_CACHE_HOME), so that the built-in data set is generated once. In the copy, configs/demo.ini has a batch of 16 instead of 64 and, where a
page uses no other data set, a quarter of the images: as many steps in less time. Commands are checked, not what a network learns.

Also checked: every relative link and anchor of all Markdown files; every option --x of a cresnet command against
`cresnet COMMAND --help`; README.md has at most 180 lines, PERF.md at most 200; no paragraph of docs/ has more than 8 lines of 120
columns.

  scripts/check-docs.py [PAGE...]       check all pages, or run the commands of these pages only
  scripts/check-docs.py --no-run        all checks except running the commands
  scripts/check-docs.py --list          print every command with its page, line and tag
  scripts/check-docs.py --self-test     check that each kind of fault is found
CRESNET_BIN is the program (default build/cresnet). Without it, commands and options are skipped.
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from check_docs import selftest
from check_docs.links import LINES, check_lines, check_links, check_paragraphs, slug
from check_docs.pages import blocks, commands, files
from check_docs.run import run_page

ROOT = Path(__file__).resolve().parent.parent
TAGS = ("gpu", "network", "data", "build", "cuda")


class Report:
    def __init__(self, quiet=False):
        self.passed = self.failed = self.skipped = 0
        self.messages, self.quiet = [], quiet

    def fail(self, message):
        self.failed += 1
        self.messages.append(message)
        if not self.quiet:
            print("FAIL " + message, flush=True)

    def check(self, faults):
        """One check; it passes where there are no faults."""
        if not faults:
            self.passed += 1
            return
        self.fail(faults[0])
        for fault in faults[1:]:
            self.messages.append(fault)
            if not self.quiet:
                print("     " + fault)


# ---- options --------------------------------------------------------------------------------------------------------

def is_page(path):
    """Is it a page whose commands work?"""
    return path == "README.md" or path.startswith(("docs/", "tools/")) and path.endswith(".md")


def program_calls(text):
    """(words) of each call of cresnet in a command."""
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"(^|\s)#.*$", "", text, flags=re.M)
    for part in re.split(r"\|\||&&|[;|\n(){}]|\$\(", text):
        words = part.split()
        while words and (re.match(r"^\w+=", words[0]) or words[0] in ("time", "env", "nohup", "exec", "sudo", "then", "do", "else", "if", "!")):
            words.pop(0)
        if words and re.fullmatch(r"(?:\S*/)?cresnet(?:-\w+)?", words[0]):
            yield words


def check_options(page, number, text, binary, helps):
    faults = []
    for words in program_calls(text):
        name = words[0].rsplit("/", 1)[-1]
        tool = words[0].endswith("tools/" + name)  # a program of tools/
        command = name if tool else name[len("cresnet-"):] if "-" in name else words[1] if len(words) > 1 else ""
        if not command or command.startswith(("-", "$", "<")):
            continue
        if tool and not (binary.parent / "tools" / name).exists():
            continue  # a build without tests
        if command not in helps:
            call = [str(binary.parent / "tools" / name)] if tool else [str(binary), command]
            done = subprocess.run([*call, "--help"], capture_output=True, text=True, timeout=60)
            helps[command] = done.stdout + done.stderr if done.returncode == 0 else None
        if helps[command] is None:
            faults.append(f"{page}:{number}: cresnet has no command {command}")
            continue
        for word in words[1:]:
            option = re.match(r"^(--[a-z][\w-]*)", word)
            if option and not re.search(re.escape(option.group(1)) + r"(?![\w-])", helps[command]):
                faults.append(f"{page}:{number}: cresnet {command} has no option {option.group(1)}")
    return faults


def has_cuda(binary):
    said = subprocess.run([str(binary), "--version"], capture_output=True, text=True).stdout
    return re.search(r"^CUDA +\d", said, re.M) is not None


# ---- all ------------------------------------------------------------------------------------------------------------

def check(root, binary, report, only=(), run=True, seconds=None):
    texts = {path: (root / path).read_text(encoding="utf-8", errors="replace") for path in files(root) if path.endswith(".md")}
    pages = [p for p in texts if is_page(p)]
    helps, run_too = {}, {"cuda"} if binary and has_cuda(binary) else set()
    cache = tempfile.TemporaryDirectory(prefix="check-docs-")
    if not only:
        for path in texts:
            report.check(check_links(root, path, texts))
        for path in LINES:
            if path in texts:
                report.check(check_lines(path, texts[path]))
        for path in pages:
            if path.startswith("docs/"):
                report.check(check_paragraphs(path, texts[path]))
    for path in pages:
        if only and path not in only:
            continue
        wanted, tags, options = [], [], []
        for block in blocks(texts[path]):
            if not block.language:
                tags.append(f"{path}:{block.line}: a block without a language: write ```sh, ```text, ```ini ...")
            if block.language != "sh":
                continue
            unknown = [t for t in block.tags if t not in TAGS]
            if unknown:
                tags.append(f"{path}:{block.line}: unknown tag {unknown[0]}; the tags are {', '.join(TAGS)}")
            for number, text in commands(block):
                if binary:
                    options += check_options(path, number, text, binary, helps)
                if not binary or not run or set(block.tags) - run_too:
                    report.skipped += 1
                else:
                    wanted.append((number, text))
        report.check(tags)
        if binary:
            report.check(options)
        else:
            report.skipped += 1
        if wanted:
            run_page(root, path, wanted, binary, report, cache.name, seconds)
    cache.cleanup()


def main():
    arguments, run = sys.argv[1:], True
    if arguments == ["--self-test"]:
        return selftest.self_test(check, Report, slug)
    if arguments == ["--list"]:
        for path in files(ROOT):
            if is_page(path):
                for block in blocks((ROOT / path).read_text(encoding="utf-8")):
                    for number, text in commands(block) if block.language == "sh" else ():
                        print(f"{path}:{number}: [{' '.join(block.tags) or 'run'}] {text}")
        return 0
    if arguments == ["--no-run"]:
        arguments, run = [], False
    if any(a.startswith("-") for a in arguments):
        print(__doc__, file=sys.stderr)
        return 2
    binary = Path(os.environ.get("CRESNET_BIN") or ROOT / "build" / "cresnet").resolve()
    if not os.access(binary, os.X_OK):
        print(f"skipped: commands and options, because there is no {binary}")
        binary = None
    report = Report()
    check(ROOT, binary, report, only=arguments, run=run)
    print(f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
