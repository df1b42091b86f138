#!/usr/bin/env python3
"""check-docs.py: the commands and links of README.md and docs/ work, and the pages keep their limits.

Commands are the lines of fenced blocks that are tagged sh. The plain blocks of a page run in order, in one shell, in a
temporary copy of the repository (without its sources) whose build/ holds links to the programs of a build; a page stops at its first failing
command. Blocks with a second tag are not run and count as skipped:
  sh gpu       needs a GPU                      sh network   downloads or installs something
  sh data      needs a data set or files        sh build     compiles, which takes minutes
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
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from check_docs import selftest

ROOT = Path(__file__).resolve().parent.parent
PAGE_SECONDS, PARAGRAPH_LINES, COLUMNS = 300, 8, 120  # a page takes up to 30 s; a busy machine must not decide
LINES = {"README.md": 180, "PERF.md": 200}
NOT_COPIED = ("src/", "cuda/", "tests/")
NOT_RUN = ("gpu", "network", "data", "build")
THREADS = "2"


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


# ---- reading pages --------------------------------------------------------------------------------------------------

def files(root):
    """Every file of the repository, tracked or new, relative to root."""
    try:
        listed = subprocess.run(["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True, check=True)
        paths = listed.stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):  # a source archive has no git
        paths = [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()]
        paths = [p for p in paths if not p.startswith(("build", ".git/"))]
    return sorted(p for p in set(paths) if p and (root / p).is_file())


class Block:
    def __init__(self, language, tags, line):
        self.language, self.tags, self.line, self.lines = language, tags, line, []


def blocks(text):
    """Fenced blocks of a page; block.lines are (line number, text without the indent of the fence)."""
    found, fence, block = [], None, None
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r"^( *)(`{3,}|~{3,})\s*([^`]*)$", line)
        if fence is None and match:
            words = match.group(3).split()
            fence, block = match, Block(words[0] if words else "", tuple(words[1:]), number)
            found.append(block)
        elif fence is not None and match and match.group(2).startswith(fence.group(2)) and not match.group(3).strip():
            fence = None
        elif fence is not None:
            indent = len(fence.group(1))
            block.lines.append((number, line[indent:] if line[:indent].isspace() else line))
    return found


def without_code(text):
    """The text with fenced blocks and code spans blank."""
    out, fence = [], None
    for line in text.split("\n"):
        match = re.match(r"^ *(`{3,}|~{3,})", line)
        if match and (fence is None or match.group(1).startswith(fence)):
            fence = match.group(1) if fence is None else None
            out.append("")
        else:
            out.append("" if fence else line)
    return re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", lambda m: re.sub(r"[^\n]", " ", m.group()), "\n".join(out), flags=re.S)


def commands(block):
    """(line, text) of each command: lines joined over \\, here-documents and compound commands."""
    found, depth, end, joined = [], 0, None, False
    for number, line in block.lines:
        bare = re.sub(r"(^|\s)#.*$", "", line)
        if found and (end or depth or joined):
            found[-1] = (found[-1][0], found[-1][1] + "\n" + line)
        elif bare.strip():
            found.append((number, line))
        else:
            continue
        if end:
            end = None if line.strip() == end else end
            continue
        here = re.search(r"<<-?\s*['\"]?(\w+)", bare)
        end = here.group(1) if here else None
        words = re.findall(r"(?:^|[;&|]|\b(?:then|do|else)\b)\s*(for|while|until|if|case|done|fi|esac)\b|[;&|]\s*(done|fi|esac)\b", bare)
        for word in (a or b for a, b in words):
            depth += 1 if word in ("for", "while", "until", "if", "case") else -1
        depth = max(depth, 0)
        joined = line.endswith("\\")
    return found


# ---- links ----------------------------------------------------------------------------------------------------------

def slug(heading):
    """GitHub's anchor of a heading."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[`*]|<[^>]+>", "", text).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text):
    found, counts, fence = set(re.findall(r"<a\s+(?:id|name)=\"([^\"]+)\"", text)), {}, False
    for line in text.split("\n"):
        if re.match(r"^ *(```|~~~)", line):
            fence = not fence
        match = None if fence else re.match(r"^#{1,6}\s+(.*?)\s*#*\s*$", line)
        if match:
            name = slug(match.group(1))
            count = counts.get(name, 0)
            counts[name] = count + 1
            found.add(f"{name}-{count}" if count else name)
    return found


def links(text):
    """(line, target) of every link and image."""
    plain = without_code(text)
    pattern = r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|<(?:img|a)\b[^>]*?\b(?:src|href)=\"([^\"]+)\"|^ {0,3}\[[^\]]+\]:\s+(\S+)"
    for match in re.finditer(pattern, plain, re.M):
        yield plain.count("\n", 0, match.start()) + 1, next(g for g in match.groups() if g)


def check_links(root, path, texts):
    faults = []
    for line, target in links(texts[path]):
        if re.match(r"^[a-z][a-z0-9+.-]*:|^//", target, re.I):
            continue
        place, _, anchor = target.partition("#")
        goal = os.path.normpath(os.path.join(os.path.dirname(path), place.split("?")[0])) if place else path
        if goal.startswith("..") or not (root / goal).exists():
            faults.append(f"{path}:{line}: link to {target}: there is no {goal}")
        elif anchor and goal.endswith(".md"):
            if goal not in texts:
                texts[goal] = (root / goal).read_text(encoding="utf-8")
            if anchor not in anchors(texts[goal]):
                faults.append(f"{path}:{line}: link to {target}: {goal} has no heading #{anchor}")
    return faults


# ---- limits ---------------------------------------------------------------------------------------------------------

def check_lines(path, text):
    count, most = len(text.rstrip("\n").split("\n")), LINES[path]
    return [f"{path}: {count} lines, {most} is the most"] if count > most else []


def check_paragraphs(path, text):
    faults, begin, size = [], 0, 0

    def close():
        nonlocal size
        if size > PARAGRAPH_LINES:
            faults.append(f"{path}:{begin}: a paragraph of {size} lines, {PARAGRAPH_LINES} is the most")
        size = 0

    fence = False
    for number, line in enumerate(text.split("\n") + [""], 1):
        if re.match(r"^ *(```|~~~)", line):
            fence = not fence
            close()
        elif fence or not line.strip() or re.match(r"^\s*(\||#|<|!\[[^\]]*\]\([^)]*\)\s*$)", line):
            close()
        else:
            if re.match(r"^\s*([-*+]|\d+[.)])\s", line):
                close()
            if not size:
                begin = number
            size += max(1, -(-len(line) // COLUMNS))
    return faults


# ---- options --------------------------------------------------------------------------------------------------------

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
        command = name[len("cresnet-"):] if "-" in name else words[1] if len(words) > 1 else ""
        if not command or command.startswith(("-", "$", "<")):
            continue
        if command not in helps:
            done = subprocess.run([str(binary), command, "--help"], capture_output=True, text=True, timeout=60)
            helps[command] = done.stdout + done.stderr if done.returncode == 0 else None
        if helps[command] is None:
            faults.append(f"{page}:{number}: cresnet has no command {command}")
            continue
        for word in words[1:]:
            option = re.match(r"^(--[a-z][\w-]*)", word)
            if option and not re.search(re.escape(option.group(1)) + r"(?![\w-])", helps[command]):
                faults.append(f"{page}:{number}: cresnet {command} has no option {option.group(1)}")
    return faults


# ---- running --------------------------------------------------------------------------------------------------------

PRELUDE = """unset BASH_ENV
trap 'code=$?; printf "%s %s\\n" "$LINENO" "$code" >"$CHECK_DOCS_FAILURE"' ERR
set -eE -o pipefail
"""


def make_copy(root, folder, binary):
    for path in files(root):
        if path.startswith(NOT_COPIED):
            continue
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / path, target, follow_symlinks=False)
    (folder / "build").mkdir(exist_ok=True)
    for program in binary.resolve().parent.glob("cresnet*"):
        if program.is_file() and os.access(program, os.X_OK):
            (folder / "build" / program.name).symlink_to(program)
    if not (folder / "build" / "cresnet").exists():
        (folder / "build" / "cresnet").symlink_to(binary.resolve())


def make_demo_small(folder, wanted):
    demo = folder / "configs" / "demo.ini"
    if not demo.exists():
        return
    text = demo.read_text(encoding="utf-8")
    images = "" if any("data.kind=" in command for _, command in wanted) else "\ntrain_images = 1000\nval_images = 250"
    for old, new in (("batch = 64", "batch = 16"), ("kind = shapes", "kind = shapes" + images)):
        if text.count(old) != 1:
            raise SystemExit(f"configs/demo.ini: no line {old}")
        text = text.replace(old, new)
    demo.write_text(text, encoding="utf-8")


def run_page(root, path, wanted, binary, report, cache, seconds=None):
    """Runs the commands (line, text) of a page; those behind a failing one count as skipped."""
    seconds = PAGE_SECONDS if seconds is None else seconds
    with tempfile.TemporaryDirectory(prefix="check-docs-") as temporary:
        folder = Path(temporary) / "cresnet"
        folder.mkdir()
        make_copy(root, folder, binary)
        make_demo_small(folder, wanted)
        # The script has each command in the line that it has in the page, so that bash reports the page's line.
        script, end = [], 0
        for number, text in wanted:
            script += [""] * (number - 1 - end) + text.split("\n")
            end = len(script)
        (Path(temporary) / "page.sh").write_text("\n".join(script) + "\n")
        (Path(temporary) / "prelude.sh").write_text(PRELUDE)
        failure = Path(temporary) / "failure"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("CRESNET_", "OMP_", "XDG_"))}
        environment.update(HOME=temporary, XDG_CACHE_HOME=cache, BASH_ENV=temporary + "/prelude.sh", CUDA_VISIBLE_DEVICES="",
                           CHECK_DOCS_FAILURE=str(failure), OMP_NUM_THREADS=THREADS, OMP_THREAD_LIMIT=THREADS, TERM="dumb",
                           PATH=f"{folder}/build:{os.environ.get('PATH', '')}", GOMP_SPINCOUNT=os.environ.get("GOMP_SPINCOUNT", "10000"))
        with open(Path(temporary) / "log", "wb") as log:
            shell = subprocess.Popen(["bash", "--norc", temporary + "/page.sh"], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                     stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = shell.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                try:
                    os.killpg(shell.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                shell.wait()
        if code == 0:
            report.passed += len(wanted)
            return
        said = (Path(temporary) / "log").read_text(errors="replace").strip().split("\n")[-5:]
        line = int(failure.read_text().split()[0]) if code is not None and failure.exists() else None
        if code is None:
            report.fail(f"{path}: its commands take more than {seconds} s")
            report.skipped += len(wanted) - 1
        else:
            at = max((i for i, (number, _) in enumerate(wanted) if line and number <= line), default=0)
            report.passed += at
            report.skipped += len(wanted) - at - 1
            shown = wanted[at][1].replace("\\\n", " ").split("\n")[0]
            report.fail(f"{path}:{wanted[at][0]}: exit status {code}: {' '.join(shown.split())}")
        if not report.quiet:
            for text in said:
                print("     | " + text[:200])


# ---- all ------------------------------------------------------------------------------------------------------------

def check(root, binary, report, only=(), run=True, seconds=None):
    texts = {path: (root / path).read_text(encoding="utf-8", errors="replace") for path in files(root) if path.endswith(".md")}
    pages = [p for p in texts if p == "README.md" or p.startswith("docs/")]
    helps = {}
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
            unknown = [t for t in block.tags if t not in NOT_RUN]
            if unknown:
                tags.append(f"{path}:{block.line}: unknown tag {unknown[0]}; the tags are {', '.join(NOT_RUN)}")
            for number, text in commands(block):
                if binary:
                    options += check_options(path, number, text, binary, helps)
                if block.tags or not binary or not run:
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
            if path == "README.md" or path.startswith("docs/") and path.endswith(".md"):
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
