"""check_docs/links.py: links and anchors, and the limits of a page: its lines and the lines of a paragraph."""
import os
import re

from check_docs.pages import without_code

PARAGRAPH_LINES, COLUMNS = 8, 120
LINES = {"README.md": 180, "PERF.md": 200}


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
