"""check_docs/run.py: runs the commands of a page in a copy of the repository."""
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from check_docs.pages import files

PAGE_SECONDS = 300  # a page takes up to 30 s; a busy machine must not decide
NOT_COPIED = ("src/", "cuda/", "tests/")
THREADS = "2"

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
    for place in ("", "tools"):
        (folder / "build" / place).mkdir(parents=True, exist_ok=True)
        for program in (binary.resolve().parent / place).glob("cresnet*"):
            if program.is_file() and os.access(program, os.X_OK):
                (folder / "build" / place / program.name).symlink_to(program)
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
