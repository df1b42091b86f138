"""check_docs/selftest.py: plants one fault of each kind and expects that check-docs.py finds it."""
import tempfile
from pathlib import Path

FAKE = """#!/bin/sh
if [ "$2" = --help ]; then
    case $1 in train) echo "usage: cresnet train CONFIG [--epochs N] [--resume auto]"; exit 0;; eval) echo "usage: cresnet eval"; exit 0;; esac
    exit 2
fi
exit 0
"""


def self_test(check, Report, slug):
    passed = failed = 0
    good = {
        "README.md": "# A\n\n[guide](docs/a.md#a-heading) ![x](docs/x.svg)\n\n```sh\nbuild/cresnet train x.ini --epochs 2 # --other is no option\n```\n",
        "docs/a.md": "# Page\n\n## A `heading`\n\nText with `[no](link.md)`.\n\n```text\n[no](link.md)\nfalse\n```\n\n"
                     "```sh\nx=3\ntouch made\n```\n\nThen:\n\n```sh\n[ $x = 3 ]\ntest -f made\nfor i in 1 2; do\n  cresnet eval\ndone\n"
                     "cat <<E >out\n# a file\nE\ntest -s out && echo a \\\n  b\n```\n\n```sh gpu\nfalse\n```\n",
        "docs/x.svg": "<svg/>\n", "x.ini": "\n", "src/a.c": "int x;\n",
    }
    cases = [  # file, text, what the message has; counts of the checks (passed, failed, skipped) where they matter
        (None, None, None),
        ("docs/b.md", "[a](c.md)\n", "docs/b.md:1: link to c.md"),
        ("docs/b.md", "[a](a.md#nowhere)\n", "has no heading #nowhere"),
        ("docs/b.md", "[a](#nowhere)\n", "has no heading #nowhere"),
        ("docs/b.md", "<img src=\"none.png\">\n", "none.png"),
        ("docs/b.md", "[a]: none.md\n", "none.md"),
        ("docs/b.md", "# T\n\n```\nx\n```\n", "docs/b.md:3: a block without a language"),
        ("docs/b.md", "```sh slow\nx\n```\n", "unknown tag slow"),
        ("docs/b.md", "one\n" * 9, "docs/b.md:1: a paragraph of 9 lines"),
        ("docs/b.md", "x" * 1100 + "\n", "a paragraph of 10 lines"),
        ("docs/b.md", "a\n\n```sh\ntrue\nfalse\ntouch never\n```\n", "docs/b.md:5: exit status 1: false"),
        ("docs/b.md", "```sh\nfalse | cat\n```\n", "docs/b.md:2: exit status 1"),
        ("docs/b.md", "```sh\nno-such-program x\n```\n", "docs/b.md:2: exit status 127"),
        ("docs/b.md", "```sh\nsleep 60\n```\n", "take more than"),
        ("docs/b.md", "```sh\ncresnet train x.ini --wrong 1\n```\n", "cresnet train has no option --wrong"),
        ("docs/b.md", "```sh gpu\nbuild/cresnet eval --epochs 1\n```\n", "cresnet eval has no option --epochs"),
        ("docs/b.md", "```sh\nA=1 cresnet strain\n```\n", "cresnet has no command strain"),
        ("README.md", "x\n\n" * 91, "README.md: 181 lines"),
        ("PERF.md", "x\n\n" * 101, "PERF.md: 201 lines"),
    ]
    for path, text, want in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "tree"
            for name, content in {**good, **({path: text} if path else {})}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(content)
            binary = root / "build" / "cresnet"
            binary.parent.mkdir()
            binary.write_text(FAKE)
            binary.chmod(0o755)
            report = Report(quiet=True)
            check(root, binary, report, seconds=3)
            if want is None:  # README: 1 command; docs/a.md: 7 and one that is skipped
                good_report = report.failed == 0 and report.skipped == 1 and report.passed == 2 + 1 + 1 + 4 + 8
            else:
                good_report = report.failed == 1 and any(want in m for m in report.messages)
        if good_report:
            passed += 1
        else:
            failed += 1
            print(f"FAIL expected {want}; {report.passed} passed, {report.failed} failed, {report.skipped} skipped: {report.messages}")
    for heading, want in [("A `heading`", "a-heading"), ("What, and why?", "what-and-why"), ("2:4 sparsity", "24-sparsity"), ("a_b - c", "a_b---c"),
                          ("[Link](x.md) here", "link-here")]:
        if slug(heading) == want:
            passed += 1
        else:
            failed += 1
            print(f"FAIL slug({heading}) is {slug(heading)}, not {want}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0
