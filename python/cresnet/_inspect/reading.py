"""cresnet._inspect.reading: opens images with Pillow by the names that the program gives them: files, members of archives."""
from __future__ import annotations

import glob
import io
import os
import re
import struct
import tarfile
import threading
from typing import Any

import numpy as np

from .extra import extra

_RECORD = re.compile(r"(.+\.(?:bin|crpk))\[(\d+)\]")
_CIFAR_PIXELS = 3 * 32 * 32
_RAW, _CHANNELS = 1, {0: 3, 1: 1, 2: 4}  # of a packed file, by its format of raw pixels


def as_utf8(name: str) -> str:
    """A name as tables of the program have it: each byte that is not UTF-8 is U+FFFD."""
    return re.sub("[\udc80-\udcff]", "\ufffd", name)


class Reader:
    """Opens images as RGB images of Pillow, upright by their EXIF orientation:

    - a path, absolute, relative to the folder `root` or to the current folder;
    - data_batch_2.bin[117]: a record of CIFAR-10, train.bin[5]: one of CIFAR-100;
    - val.crpk[117]: a record of a packed file of 8 bits;
    - a.tar:cat/1.jpg: a member of an archive.

    Raises OSError for what cannot be read. Threads may share a reader."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._image, self._ops = extra("PIL.Image"), extra("PIL.ImageOps")
        self._lock = threading.Lock()
        self._files: dict[str, Any] = {}
        self._members: dict[str, dict[str, tuple[int, int]]] = {}

    def path(self, name: str) -> str:
        """The file of an image, or the name itself when the image is no file of its own."""
        inside = os.path.join(self.root, name)
        if "\ufffd" in name and not os.path.exists(inside):  # a byte that is not UTF-8, in a table of the program
            same = [path for path in glob.glob(glob.escape(inside).replace("\ufffd", "*")) if as_utf8(path) == inside]
            inside = same[0] if same else inside
        return inside if os.path.exists(inside) else name

    def exists(self, name: str) -> bool:
        """Whether the file that has the image is there."""
        path, record = self.path(name), _RECORD.fullmatch(name)
        return os.path.isfile(path) or os.path.isfile(self.path(record[1])) if record else (
            os.path.isfile(path) or ".tar:" in path and os.path.isfile(path.rpartition(".tar:")[0] + ".tar"))

    def open(self, name: str, size: int = 0) -> Any:
        """size: when it is not 0, a JPEG file may be decoded at less than its size, but not below `size` pixels. info["size"] is the size of the file."""
        try:
            return self._open(name, size)
        except OSError:
            raise
        except Exception as error:  # Pillow's decoders raise errors of many kinds for damaged files
            raise OSError(f"{name}: {error}") from None

    def pixels(self, name: str) -> Any:
        """The image as an array [height, width, 3], or None when it cannot be read."""
        try:
            return np.asarray(self.open(name))
        except OSError:
            return None

    def _open(self, name: str, size: int) -> Any:
        record = _RECORD.fullmatch(name)
        if record and os.path.isfile(self.path(record[1])):
            return (self._cifar if record[1].endswith(".bin") else self._packed)(record[1], int(record[2]))
        path = self.path(name)
        archive, colon, member = path.rpartition(".tar:")
        return self._decode(self._member(archive + ".tar", member) if colon and not os.path.exists(path) else path, size)

    def _decode(self, file: Any, size: int) -> Any:
        with self._image.open(file) as image:
            width, height = image.size
            if size:
                image.draft("RGB", (size, size))
            if image.mode in ("I;16", "I;16B", "I"):  # Pillow would cut values above 255 off
                image = self._image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8))
            upright = self._ops.exif_transpose(image).convert("RGB")
            turned = upright.size == image.size[::-1] and upright.size != image.size
            upright.info["size"] = (height, width) if turned else (width, height)
            return upright

    def _map(self, name: str) -> Any:
        with self._lock:
            if name not in self._files:
                self._files[name] = np.memmap(self.path(name), np.uint8, "r")
            return self._files[name]

    def _cifar(self, name: str, index: int) -> Any:
        data = self._map(name)
        labels = 2 if os.path.basename(name) in ("train.bin", "test.bin") else 1  # CIFAR-100: coarse and fine
        start = index * (labels + _CIFAR_PIXELS) + labels
        if start + _CIFAR_PIXELS > len(data):
            raise OSError(f"{name} has no image {index}")
        return self._image.fromarray(np.array(data[start:start + _CIFAR_PIXELS]).reshape(3, 32, 32).transpose(1, 2, 0))

    def _packed(self, name: str, index: int) -> Any:
        data = self._map(name)
        form, count, table, form_of_pixels = (*struct.unpack("<I", data[12:16]), *struct.unpack("<Q", data[24:32]), *struct.unpack("<Q", data[48:56]),
                                              *struct.unpack("<I", data[60:64]))
        if index >= count:
            raise OSError(f"{name} has no image {index}")
        offset, size, _, width, height = struct.unpack("<QIIII", data[table + 32 * index:table + 32 * index + 24])
        content = np.array(data[offset:offset + size])
        if form != _RAW:
            return self._decode(io.BytesIO(content.tobytes()), 0)
        if form_of_pixels not in _CHANNELS:
            raise OSError(f"{name} has pixels of 16 bits")
        pixels = content.reshape(height, width, _CHANNELS[form_of_pixels])
        return self._image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")

    def _member(self, archive: str, member: str) -> Any:
        with self._lock:
            if archive not in self._members:
                with tarfile.open(archive) as tar:
                    self._members[archive] = {each.name: (each.offset_data, each.size) for each in tar if each.isfile()}
            place = self._members[archive].get(member)
        if place is None:
            raise OSError(f"{archive} has no member {member}")
        with open(archive, "rb") as file:
            file.seek(place[0])
            return io.BytesIO(file.read(place[1]))
