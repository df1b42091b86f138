"""texts.py: splits a file into the kinds of text that check-words.py tells apart."""
import bisect
import re

from .word import COMMENT, DOCUMENT, IDENTIFIER, STRING

C_FILES = (".c", ".h", ".cu", ".cuh", ".def", ".in")
HASH_FILES = (".py", ".sh", ".cmake", ".ini", "CMakeLists.txt", "Dockerfile")

C_TOKEN = re.compile(r"//(?:\\\n|[^\n])*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'", re.S)
PY_TOKEN = re.compile(r"#[^\n]*|\"\"\".*?\"\"\"|'''.*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
HASH_TOKEN = re.compile(r"(?<![$\w{])#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'")
INI_TOKEN = re.compile(r"^\s*[#;][^\n]*|\s[#;][^\n]*", re.M)
REGION = re.compile(r"check-words: (off|on)\b *(\([^)]+\))?")


class Text:
    """Text of one kind, joined from pieces of a file; knows the line of each of its characters."""

    def __init__(self):
        self.pieces, self.starts, self.lines, self.length, self.text, self.lower, self.end = [], [], [], 0, None, None, -9

    def add(self, piece, line):
        # Line comments on consecutive lines are one text: a phrase may go on in the next line.
        gap = "\n" if line <= self.end + 1 else "\n\0\n"
        self.pieces += [gap, piece]
        self.length += len(gap)
        self.starts.append(self.length)
        self.lines.append(line)
        self.length += len(piece)
        self.end = line + piece.count("\n")

    def whole(self):
        if self.text is None:
            self.text = "".join(self.pieces)
            self.lower = self.text.lower()
        return self.text

    def line(self, at):
        index = bisect.bisect(self.starts, at) - 1
        return self.lines[index] + self.text.count("\n", self.starts[index], at)


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def plain_comment(text):
    """A comment without its decoration; characters keep their places."""
    text = re.sub(r"^[ \t]*(?:\*+/?|//+|#+)", lambda m: " " * len(m.group()), text, flags=re.M)
    return re.sub(r"^/\*+|\*+/$", lambda m: " " * len(m.group()), text)


def plain_string(text):
    text = re.sub(r"\"\s*(?:PRI[a-zA-Z0-9]+)?\s*\"", lambda m: "\n" * m.group().count("\n"), text)
    return re.sub(r"\\[nt\"']", "  ", text.strip("\"'"))


def kinds_of(path):
    if path.endswith(C_FILES):
        return C_TOKEN
    if path.endswith(".py"):
        return PY_TOKEN
    if path.endswith(".ini"):
        return INI_TOKEN
    if path.endswith(HASH_FILES):
        return HASH_TOKEN
    return None


def split(path, text):
    """The texts of a file by kind. Excluded regions are blank. Also the number of these regions."""
    regions, parts, at = 0, [], 0
    while True:
        off = REGION.search(text, at)
        if not off:
            break
        if off.group(1) == "on" or not off.group(2):
            at = off.end()
            continue
        on = text.find("check-words: on", off.end())
        on = len(text) if on < 0 else text.rfind("\n", 0, on) + 1
        begin = text.find("\n", off.end())
        if begin >= 0 and begin < on:
            parts.append((begin, on))
        regions, at = regions + 1, max(on, off.end())
    for begin, end in parts:
        text = text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]
    texts = {IDENTIFIER: Text(), COMMENT: Text(), STRING: Text(), DOCUMENT: Text()}
    if path.endswith((".md", ".1", ".txt")) and not path.endswith("CMakeLists.txt") or "/" not in path and path == "README":
        texts[DOCUMENT].add(text, 1)
        return texts, regions
    token = kinds_of(path)
    if token is None:
        return texts, regions
    line, at, strings, last = 1, 0, None, 0
    for match in token.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        found = match.group()
        if found[0] == '"' and token is C_TOKEN:  # adjacent literals are one string
            if strings and re.fullmatch(r"\s*(?:PRI[a-zA-Z0-9]+)?\s*", text[last:at]) and len(text[last:at]) < 200:
                strings[0] += text[last:at] + found
            else:
                if strings:
                    texts[STRING].add(plain_string(strings[0]), strings[1])
                    texts[STRING].end = -9
                strings = [found, line]
            last = match.end()
        elif found.startswith(('"""', "'''")):
            texts[COMMENT].add(found, line)
        elif found[0] in "\"'":
            texts[STRING].add(plain_string(found), line)
            texts[STRING].end = -9
        else:
            texts[COMMENT].add(plain_comment(found), line)
            if found.startswith("/*"):
                texts[COMMENT].end = -9
    if strings:
        texts[STRING].add(plain_string(strings[0]), strings[1])
    code = token.sub(blank, text)
    if token is INI_TOKEN:
        texts[STRING].add(code, 1)
    else:
        texts[IDENTIFIER].add(code, 1)
    return texts, regions
