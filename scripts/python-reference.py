#!/usr/bin/env python3
"""python-reference.py: writes docs/reference/python.md from the docstrings of python/cresnet, without importing it.

  scripts/python-reference.py           writes the page
  scripts/python-reference.py --check   fails when the page is not what the docstrings give, or a public name has no docstring; the last line
                                        is "N passed, N failed, N skipped"
"""
import ast
import inspect
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference/python.md"
GROUPS = (("Training", ("train", "finetune", "resume", "Run", "Event")),
          ("Networks from networks", ("sweep", "prune", "quantize", "export")),
          ("Looking at data and errors", ("audit", "Audit", "Finding", "Errors", "Mistake")),
          ("An estimator", ("Classifier",)),
          ("Classification", ("Model", "Info", "Result", "Logits", "memory_needed")),
          ("Errors and version", ("CresnetError", "ArgumentError", "version")))
SHOWN = ("__dlpack__", "__dlpack_device__")  # special methods that users call
WIDTH = 100  # of a signature


def exported():
    """The public names and the files that define them."""
    tree = ast.parse((ROOT / "python/cresnet/__init__.py").read_text(encoding="utf-8"))
    return {name.asname or name.name: node.module for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names
            if not (name.asname or name.name).startswith("_")}


def comment_before(lines, node):
    """The lines "#: ..." above an assignment."""
    first = node.lineno - 1
    while lines[first - 1].strip().startswith("#:"):
        first -= 1
    return " ".join(line.strip()[2:].strip() for line in lines[first:node.lineno - 1])


def signature(node, name):
    """def name(arguments) -> result, over several lines when it is long."""
    arguments = node.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments = ast.arguments(arguments.posonlyargs, arguments.args[1:], arguments.vararg, arguments.kwonlyargs, arguments.kw_defaults,
                                  arguments.kwarg, arguments.defaults)
    inside, result = ast.unparse(arguments), f" -> {ast.unparse(node.returns)}" if node.returns and name[:1].islower() else ""
    if len(name) + len(inside) + len(result) <= WIDTH:
        return f"{name}({inside}){result}"
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(inside + ","):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append(inside[start:at].strip())
            start = at + 1
    lines, indent = [f"{name}("], " " * (len(name) + 1)
    for i, part in enumerate(parts):
        part += "," if i + 1 < len(parts) else f"){result}"
        if len(lines[-1]) + len(part) > WIDTH and lines[-1].strip() != f"{name}(":
            lines.append(indent + part)
        else:
            lines[-1] += part if lines[-1].endswith("(") else " " + part
    return "\n".join(lines)


class Page:
    def __init__(self):
        self.text, self.missing = [], []

    def add(self, *lines):
        self.text += lines

    def described(self, name, node):
        text = ast.get_docstring(node)
        if not text:
            self.missing.append(name)
        self.add(text or "", "")

    def function(self, name, node, level):
        self.add(f"{'#' * level} `{name}`", "", "```python", signature(node, name.split(".")[-1]), "```", "")
        self.described(name, node)

    def members(self, name, node, lines):
        """A table of the annotated attributes: those of a data class, and those with a comment "#:"."""
        rows = []
        data = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        for item in node.body if data else [item for method in node.body if isinstance(method, ast.FunctionDef) for item in method.body]:
            if isinstance(item, ast.AnnAssign) and comment_before(lines, item):
                target = item.target.attr if isinstance(item.target, ast.Attribute) else item.target.id
                rows.append((target, ast.unparse(item.annotation), comment_before(lines, item)))
            elif data and isinstance(item, ast.AnnAssign):
                self.missing.append(f"{name}.{item.target.id}")
        if rows:
            self.add("| attribute | type | meaning |", "|---|---|---|", *(f"| `{a}` | `{b}` | {c} |" for a, b, c in rows), "")

    def a_class(self, name, node, lines):
        made = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
        self.add(f"### `{name}`", "")
        if made and name not in ("Logits",):
            self.add("```python", signature(made, name), "```", "")
        self.described(name, node)
        self.members(name, node, lines)
        for item in node.body:
            if not isinstance(item, ast.FunctionDef) or (item.name.startswith("_") and item.name not in SHOWN):
                continue
            if any(ast.unparse(decorator) == "property" for decorator in item.decorator_list):
                self.add(f"#### `{name}.{item.name}`", "", f"A property: `{ast.unparse(item.returns)}`.", "")
                self.described(f"{name}.{item.name}", item)
            else:
                self.function(f"{name}.{item.name}", item, 4)

    def name(self, name, module):
        source = (ROOT / f"python/cresnet/{module}.py").read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return self.function(name, node, 3)
            if isinstance(node, ast.ClassDef) and node.name == name:
                return self.a_class(name, node, source.splitlines())
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                return self.add(f"### `{name}`", "", comment_before(source.splitlines(), node), "")
        raise SystemExit(f"python-reference.py: python/cresnet/{module}.py does not define {name}")


def page():
    names, out = exported(), Page()
    out.add("# The Python package", "", "<!-- Generated by scripts/python-reference.py from python/cresnet. -->", "",
            "All public names of `cresnet`. [The guide](../guides/python.md) shows how they are used together.", "")
    for title, group in GROUPS:
        out.add(f"## {title}", "")
        for name in group:
            out.name(name, names.pop(name))
    out.missing += names  # belong to no group
    return inspect.cleandoc("\n".join(out.text)) + "\n", out.missing


def main():
    text, missing = page()
    if sys.argv[1:] == ["--check"]:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        if not current:
            print("docs/reference/python.md is out of date: run scripts/python-reference.py")
        for name in missing:
            print(f"{name}: no docstring, or no group in scripts/python-reference.py")
        failed = (not current) + bool(missing)
        print(f"{2 - failed} passed, {failed} failed, 0 skipped")
        return failed > 0
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
