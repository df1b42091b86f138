#!/usr/bin/env python3
"""attack-test.py: runs cresnet with hostile files, names, folders, arguments, limits, links, pipes and signals.

Each run must end in time with a documented exit code and one clear message, without a report of a sanitizer, without
control characters in its output, without leftovers, and without a change outside of its own folder. Use a build with
-DCRESNET_SANITIZE=address. Some cases need root (a full file system), others another user (missing permissions), and are
skipped without. The cases are in scripts/attack/*.py; support.py lists the rules.

  scripts/attack-test.py [--program build/address/cresnet] [--plain build/cresnet] [--only PATTERN] [--verbose]
                         [--list] [--every N] [--jobs N] [--seed N] [--keep] [--transcript FILE]

--plain names a build without sanitizer, for limits on memory, which the sanitizer itself exceeds. Random choices have
fixed seeds. Exit status 1 if a case fails. The last line is "N passed, N failed, N skipped".
"""
import argparse
import fnmatch
import os
import shutil
import stat
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
sys.dont_write_bytecode = True

from attack import (arguments, base, configuration, datasets, flips, formats, geometry, images, limits,  # noqa: E402, F401
                    outputs, runs, scarce, signals, tiff)
from attack.support import CASES, Sandbox, Skip  # noqa: E402


def remove(folder):
    """Removes the folder of a case, which may have taken permissions away, or have names beyond the longest path."""
    for _, dirs, _, fd in os.fwalk(folder):
        for name in dirs:
            if not stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                os.chmod(name, 0o755, dir_fd=fd)
    shutil.rmtree(folder, ignore_errors=True)


def run_case(number, entry, work, args):
    subject, name, function = entry
    folder = work / ("%03d" % number)
    sandbox = Sandbox(folder, work / "base", args.program, args.plain, args.seed)
    begin = time.monotonic()
    try:
        function(sandbox)
        sandbox.finish()
    except Skip as why:
        return "skip", [str(why)], time.monotonic() - begin
    except Exception as e:  # a mistake in a case must not end the other cases
        sandbox.problem("the case itself", "%s: %s (line %d)" %
                        (type(e).__name__, e, e.__traceback__.tb_next.tb_lineno))
    finally:
        if not (args.keep and sandbox.problems):
            remove(folder)
    if args.transcript:
        with open(args.transcript, "a") as f:
            f.write("==== %s: %s\n%s" % (subject, name, "".join(sandbox.transcript)))
    return ("FAIL" if sandbox.problems else "pass"), sandbox.problems, time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build" / "address" / "cresnet"))
    parser.add_argument("--plain", help="a build without sanitizer")
    parser.add_argument("--only", default="*", help="cases whose 'subject: name' matches, for example 'images: *'")
    parser.add_argument("--every", type=int, default=1, help="only each N-th of these cases")
    parser.add_argument("--list", action="store_true", help="prints the names of the cases")
    parser.add_argument("--verbose", action="store_true", help="one line for each case")
    parser.add_argument("--seed", type=int, default=1, help="of the random damage")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--transcript", metavar="FILE", help="appends each command with its exit code and its messages")
    parser.add_argument("--keep", action="store_true", help="keeps the folders of cases that fail")
    args = parser.parse_args()
    pattern = args.only if any(c in args.only for c in "*?[") else "*" + args.only + "*"
    chosen = [(i, c) for i, c in enumerate(CASES) if fnmatch.fnmatch("%s: %s" % c[:2], pattern)][::args.every]
    if args.list:
        print("\n".join("%s: %s" % c[:2] for _, c in chosen))
        return 0
    args.program = os.path.abspath(args.program)
    args.plain = args.plain and os.path.abspath(args.plain)
    for program in filter(None, (args.program, args.plain)):
        if not os.access(program, os.X_OK):
            sys.exit("attack-test: %s does not exist: build it, or name another with --program" % program)
    work = Path(tempfile.mkdtemp(prefix="attack-"))
    counts, runs_seconds = Counter(), time.monotonic()
    try:
        base.make(work / "base", args.program)
        with ThreadPoolExecutor(args.jobs) as pool:
            for (_, c), future in [(e, pool.submit(run_case, *e, work, args)) for e in chosen]:
                state, texts, seconds = future.result()
                counts[c[0], state] += 1
                if args.verbose or state == "FAIL":
                    print("%s %s: %s (%.1f s)" % (state, c[0], c[1], seconds))
                for text in texts if state == "FAIL" or args.verbose else []:
                    print("     " + ascii(text).replace("\\n", "\n     ")[1:-1])
                sys.stdout.flush()
    finally:
        if args.keep and any(state == "FAIL" for _, state in counts):
            print("kept:", work)
        else:
            shutil.rmtree(work, ignore_errors=True)
    print("%-16s %6s %6s %6s %7s" % ("subject", "cases", "passed", "failed", "skipped"))
    for subject in dict.fromkeys(c[0] for _, c in chosen):
        line = [counts[subject, s] for s in ("pass", "FAIL", "skip")]
        print("%-16s %6d %6d %6d %7d" % (subject, sum(line), *line))
    print("%d s" % (time.monotonic() - runs_seconds))
    total = [sum(n for (_, s), n in counts.items() if s == state) for state in ("pass", "FAIL", "skip")]
    print("%d passed, %d failed, %d skipped" % tuple(total))
    return 1 if total[1] or not sum(total) else 0


if __name__ == "__main__":
    sys.exit(main())
