"""check_docs/pages.py: the files of the repository; the blocks, commands and text of a page."""
import re
import subprocess


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
