"""Renames kernels and signatures in the kept tables of kernel times, for a commit that changes how kernels are named or how the cost table
describes ops. Times and algorithms must stay, and keys that differed must go on to differ: both are checked before anything is written.

    python3 tests/guard/rekey_times.py RULES
RULES has one rule a line: a Python regular expression, a tab, what replaces it; applied in this order to "KERNEL<tab>SIGNATURE" of each line,
where the tab is written \\t."""
import glob
import lzma
import os
import re
import sys

import programs


def checksum(text):
    """FNV-1a with 64 bits, as in src/autotune/cost_table.c."""
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def read_rules(path):
    with open(path) as file:
        rules = [line.rstrip("\n").split("\t") for line in file if line.strip() and not line.startswith("#")]
    for rule in rules:
        if len(rule) != 2:
            sys.exit(f"{path}: {rule}: a rule is a regular expression, a tab, what replaces it")
    return [(re.compile(pattern), new) for pattern, new in rules]


def parse(text):
    """The header, and (nanoseconds, algorithm, (kernel, signature)) of each line."""
    *lines, last = text.splitlines(keepends=True)
    body = "".join(lines)
    if last != f"sum\t{checksum(body)}\n":
        sys.exit("the table is damaged: its checksum is wrong")
    entries = []
    for line in lines[1:]:
        ns, kernel, algorithm, signature = line.rstrip("\n").split("\t")
        entries.append((ns, algorithm, (kernel, signature)))
    return lines[0], entries


def rekey(key, rules):
    text = "\t".join(key)
    for pattern, new in rules:
        text = pattern.sub(new, text)
    kernel, signature = text.split("\t")
    return kernel, signature


def rekey_text(text, rules):
    """The new text, and how many lines changed."""
    header, entries = parse(text)
    renamed = [(ns, algorithm, rekey(key, rules)) for ns, algorithm, key in entries]
    body = header + "".join(f"{ns}\t{kernel}\t{algorithm}\t{signature}\n" for ns, algorithm, (kernel, signature) in renamed)
    out = body + f"sum\t{checksum(body)}\n"
    again = parse(out)[1]
    assert [e[:2] for e in again] == [e[:2] for e in entries], "a time or an algorithm changed"
    if len({e[1:] for e in again}) != len({e[1:] for e in entries}):
        sys.exit("two ops that had times of their own would share a key: make the rules more exact")
    return out, sum(a != b for a, b in zip(entries, again))


def self_test():
    """A renaming keeps times; rules that merge two keys, and damaged tables, are refused."""
    body = "words\theader\n10\tcuda.a\t0\tconv x=f16[1]\n20\tcuda.a\t0\tconv x=f16[2]\n"
    text = body + f"sum\t{checksum(body)}\n"
    out, changed = rekey_text(text, [(re.compile(r"cuda\.a\tconv"), r"cuda.b\tconvolve")])
    assert changed == 2 and out.splitlines()[1:3] == ["10\tcuda.b\t0\tconvolve x=f16[1]", "20\tcuda.b\t0\tconvolve x=f16[2]"]
    assert checksum("") == "cbf29ce484222325" and checksum("a") == "af63dc4c8601ec8c"  # published values
    for wrong, rules in ((text, [(re.compile(r"\[.\]"), "[3]")]), (text.replace("20\t", "21\t"), [])):
        try:
            rekey_text(wrong, rules)
        except SystemExit:
            continue
        raise AssertionError("accepted")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    rules = read_rules(sys.argv[1])
    for path in sorted(glob.glob(os.path.join(programs.HERE, "kernel-times-*.txt.xz"))):
        text, changed = rekey_text(lzma.open(path, "rt").read(), rules)
        if changed:
            with open(path, "wb") as file:
                file.write(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        print(f"{os.path.basename(path)}: {changed} of {len(text.splitlines()) - 2} lines have new keys, no time changed")


if __name__ == "__main__":
    main()
