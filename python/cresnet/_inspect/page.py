"""cresnet._inspect.page: writes an HTML gallery of thumbnails, a folder which works from a file: URL. Its scripts draw only the tiles that are seen."""
from __future__ import annotations

import html
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Optional

from .._errors import ArgumentError
from .reading import Reader

THUMBNAIL = 96  # pixels of the longer side
_FOLDER = 1000  # files of a folder of thumbnails
_MARK = "<!-- written by the Python package cresnet -->"
_HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class Page:
    """What the page shows. Groups are lists of tiles; items are the tiles, in the order of their groups."""
    title: str
    #: Sentences above the tiles.
    lead: list[str]
    #: [name, number of tiles, sentence]
    groups: list[tuple[str, int, str]] = field(default_factory=list)
    #: Of each tile: the name of its image, two lines below it, the number it is sorted by, a further line for its dialog.
    items: list[tuple[str, str, str, float, str]] = field(default_factory=list)
    #: By the place of a tile: further members for its dialog, "near" and "explain".
    more: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: The name of the number that tiles are sorted by.
    sorted_by: str = "score"
    #: Further members of the data, such as curves and tables.
    data: dict[str, Any] = field(default_factory=dict)


def write_page(page: Page, output: str, reader: Reader, neighbours: Optional[list[str]] = None, on_progress: Optional[Callable[[int, int], None]] = None) -> str:
    """Writes the folder; `neighbours` are images that dialogs show, by their place. Returns the path of index.html."""
    check_output(output)
    names = list(dict.fromkeys([item[0] for item in page.items] + list(neighbours or [])))
    _write_thumbnails(names, output, reader, on_progress)
    place = {name: index for index, name in enumerate(names)}
    items = {"thumb": [place[item[0]] for item in page.items], "file": [item[0] for item in page.items], "first": [item[1] for item in page.items],
             "second": [item[2] for item in page.items], "score": [round(item[3], 4) for item in page.items], "third": [item[4] for item in page.items]}
    data = {"groups": page.groups, "items": items, "more": page.more, "sortedBy": page.sorted_by, "neighbours": [place[name] for name in neighbours or []],
            "originals": _originals(reader, names, output), **page.data}
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    _write(os.path.join(output, "data.js"), f"window.pageData={text};\n")
    for name in ("page.css", "page.js", "curves.js"):
        shutil.copyfile(os.path.join(_HERE, name), os.path.join(output, name))
    path = os.path.join(output, "index.html")
    with open(os.path.join(_HERE, "page.html"), encoding="utf-8") as file:
        frame = file.read()
    lead = "".join(f"<p>{html.escape(text)}</p>" for text in page.lead)
    _write(path, _MARK + "\n" + frame.replace("{title}", html.escape(page.title)).replace("{lead}", lead))
    return path


def check_output(output: str) -> None:
    """Makes the folder. ArgumentError when it holds another page."""
    path = os.path.join(output, "index.html")
    if os.path.exists(output) and not os.path.isdir(output):
        raise ArgumentError(f"{output}: is a file: name a folder for the page", "argument")
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            if not file.read(len(_MARK)) == _MARK:
                raise ArgumentError(f"{path} was not written by cresnet: choose another folder", "argument")
    os.makedirs(output, exist_ok=True)


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Errors of writing, such as that of a full disk, name the file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), error.filename or path) from None


def _write(path: str, text: str) -> None:
    with naming(path), open(path + ".tmp", "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


def _originals(reader: Reader, names: list[str], output: str) -> str:
    """The folder of the images as a relative URL, for dialogs; empty when images are no files of their own."""
    if not names or not os.path.isfile(reader.path(names[0])):
        return ""
    if os.path.isabs(names[0]):
        return "/"
    inside = os.path.exists(os.path.join(reader.root, names[0]))
    return os.path.relpath(reader.root if inside else ".", output).replace(os.sep, "/") + "/"


def _write_thumbnails(names: list[str], output: str, reader: Reader, on_progress: Optional[Callable[[int, int], None]]) -> None:
    folder = os.path.join(output, "thumbs")
    shutil.rmtree(folder, ignore_errors=True)
    for number in range(0, len(names) or 1, _FOLDER):
        os.makedirs(os.path.join(folder, str(number // _FOLDER)))
    done, lock = [0], threading.Lock()

    def one(index: int) -> None:
        path = os.path.join(folder, str(index // _FOLDER), f"{index}.jpg")
        try:
            image = reader.open(names[index], THUMBNAIL)
            image.thumbnail((THUMBNAIL, THUMBNAIL))
        except OSError:
            image = None  # the page shows an empty tile
        if image:
            with naming(path):
                image.save(path, quality=80)
        with lock:
            done[0] += 1
            if on_progress and done[0] % _FOLDER == 0:
                on_progress(done[0], len(names))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for _ in pool.map(one, range(len(names))):
            pass
