"""word.py: an entry of the table of check-words.py, and the search for its expressions."""
import re

try:
    from re import _parser as PARSER
except ImportError:  # before Python 3.11
    import sre_parse as PARSER

IDENTIFIER, COMMENT, STRING, DOCUMENT, NAME = "identifier", "comment", "string", "document", "file name"
CODE = (IDENTIFIER,)
PROSE = (COMMENT, STRING, DOCUMENT)
OUTPUT = (STRING, DOCUMENT)
ALL = (IDENTIFIER, COMMENT, STRING, DOCUMENT)
NAMES = (NAME,)


def part(words):
    """A word as a part of an identifier: whole, or between underscores and digits."""
    return r"(?<![A-Za-z])(?:" + words + r")(?![A-Za-z])"


def spaces(source):
    """The expression with white space of any kind and length for each space; one character of it in a look-behind or a class."""
    source = re.sub(r"\(\?<[!=][^()]*\)|\[[^\]]*\]", lambda m: m.group().replace(" ", r"\s"), source)
    source = re.sub(r" ([*?])", r"\\s\1", source)
    return source.replace(" ", r"\s+")


def literals(pattern):
    """Literals one of which every match contains (lower case), or an empty set where there is no such set."""
    best, run = set(), ""

    def better(found):
        nonlocal best
        if found and min(map(len, found)) > min(map(len, best), default=0):
            best = found

    for operator, value in pattern:
        name = str(operator)
        if name == "LITERAL":
            run += chr(value).lower()
            continue
        better({run} if run else None)
        run = ""
        if name == "SUBPATTERN":
            better(literals(value[-1]))
        elif name == "BRANCH":
            parts = [literals(p) for p in value[1]]
            better(set().union(*parts) if all(parts) else None)
        elif name == "MAX_REPEAT" and value[0] > 0:
            better(literals(value[2]))
    better({run} if run else None)
    return best


def matches(expression, hints, text, lower):
    """All matches in a text, which is searched only near the literals that a match contains."""
    if not hints:
        yield from expression.finditer(text)
        return
    places = []
    for hint in hints:
        at = lower.find(hint)
        while at >= 0:
            places.append(at)
            at = lower.find(hint, at + 1)
    windows = []
    for at in sorted(places):
        if windows and at < windows[-1][1]:
            continue
        begin = end = at
        for _ in range(3):  # the lines around it: a phrase may be on two
            begin = max(text.rfind("\n", 0, begin), 0)
            end = text.find("\n", end + 1)
            if end < 0:
                end = len(text)
                break
        if windows and begin <= windows[-1][1]:
            windows[-1][1] = end
        else:
            windows.append([begin, end])
    for begin, end in windows:
        yield from expression.finditer(text, begin, end)


class Word:
    def __init__(self, name, write, expressions, plants, allowed=()):
        self.name, self.write, self.plants = name, write, plants
        self.allowed = allowed  # (path glob, regular expression for the line or None, reason)
        self.expressions = []   # (compiled, kinds, only these globs, but not these globs, literals of every match)
        for expression, kinds, *where in expressions:
            only = where[0] if where else ()
            but = where[1] if len(where) > 1 else ()
            flags = 0 if expression.startswith("(?-i)") else re.I
            source = spaces(expression.removeprefix("(?-i)"))
            hints = tuple(literals(PARSER.parse(source)))
            self.expressions.append((re.compile(source, flags | re.M), kinds, only, but, hints))
