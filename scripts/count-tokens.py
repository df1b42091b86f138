#!/usr/bin/env python3
"""count-tokens.py: counts the code tokens of src/, cuda/, tools/ and tests/ without comments, one line a folder, and the sums.

A token is an identifier, a number, a string, a character or an operator. Counted are C and CUDA, in tests/ also Python and shell. #include
lines do not count, because they depend on how many files the code is split into.

  scripts/count-tokens.py [TREE]     TREE is a checkout, by default this one
"""
import re
import sys
from pathlib import Path

TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|[\w.])*|<<=|>>=|\.\.\.|->|\+\+|--|<<|>>|[-+*/%&|^=!<>]=|&&|\|\||##|\S')
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', re.S)

SCRIPT_STRING = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')
SCRIPT_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|(?:^|(?<=\s))\#[^\n]*', re.M)


def tokens(text):
    text = COMMENT.sub(lambda m: m.group() if m.group()[0] in "\"'" else " ", text)
    text = re.sub(r"^[ \t]*#[ \t]*include[^\n]*", "", text, flags=re.M).replace("\\\n", " ")
    text = re.sub(r'"\s+"', "", text)  # adjacent strings are one
    return len(TOKEN.findall(text))


def script_tokens(text):
    """Of Python and shell, whose strings may have several lines."""
    text = SCRIPT_COMMENT.sub(lambda m: m.group() if m.group()[0] in "\"'" else " ", text)
    return len(TOKEN.findall(SCRIPT_STRING.sub('""', text)))


def count(root, top, suffixes):
    """Returns {folder: tokens} of the files below root/top."""
    folders = {}
    for path in sorted((root / top).rglob("*")):
        if path.suffix in suffixes:
            folder = path.parent.relative_to(root).as_posix()
            counted = script_tokens if path.suffix in (".py", ".sh") else tokens
            folders[folder] = folders.get(folder, 0) + counted(path.read_text(encoding="utf-8"))
    return folders


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    code = (".c", ".h", ".cu", ".cuh", ".def")
    parts = {
        "src and cuda": {**count(root, "src", code), **count(root, "cuda", code)},
        "tools": count(root, "tools", code),
        "tests": count(root, "tests", code + (".py", ".sh")),
    }
    for folders in parts.values():
        for folder, number in sorted(folders.items()):
            print(f"{number:>9}  {folder}")
    for part, folders in parts.items():
        print(f"{sum(folders.values()):>9}  all of {part}")


main()
