#!/usr/bin/env python3
"""count-tokens.py: counts the code tokens of src/ and cuda/ without comments, one line a folder.

A token is an identifier, a number, a string, a character or an operator. #include lines do not count, because they depend on how
many files the code is split into.

  scripts/count-tokens.py [TREE]     TREE is a checkout, by default this one
"""
import re
import sys
from pathlib import Path

TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|[\w.])*|<<=|>>=|\.\.\.|->|\+\+|--|<<|>>|[-+*/%&|^=!<>]=|&&|\|\||##|\S')
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', re.S)


def tokens(text):
    text = COMMENT.sub(lambda m: m.group() if m.group()[0] in "\"'" else " ", text)
    text = re.sub(r"^[ \t]*#[ \t]*include[^\n]*", "", text, flags=re.M).replace("\\\n", " ")
    text = re.sub(r'"\s+"', "", text)  # adjacent strings are one
    return len(TOKEN.findall(text))


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    folders = {}
    for top in ("src", "cuda"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".c", ".h", ".cu", ".cuh", ".def"):
                folder = path.parent.relative_to(root).as_posix()
                folders[folder] = folders.get(folder, 0) + tokens(path.read_text(encoding="utf-8"))
    for folder, count in sorted(folders.items()):
        print(f"{count:>9}  {folder}")
    print(f"{sum(folders.values()):>9}  all")


main()
