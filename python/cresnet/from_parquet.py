"""cresnet.from_parquet: writes datasets in Parquet, as Hugging Face publishes them, as tar archives for data.kind = tar.

    python -m cresnet.from_parquet train-*.parquet validation-*.parquet OUT
    cresnet train CONFIG data.kind=tar data.root=OUT

Needs pyarrow (pip install "cresnet[parquet]"). The split of a file is the part of its name before "-00000-of-00005", or the name of its folder if the
file is named by a number. OUT gets train-00000.tar and so on: each row becomes an image and its label. Class names of the schema are written to
OUT/classes.txt, in the order of their numbers; a list of labels becomes JSON, for data.multi_label = yes.
"""
from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Iterator
from typing import Any, Optional

__all__ = ["convert", "main"]

_ARCHIVE_BYTES = 1 << 30
_ENDINGS = ((b"\xff\xd8\xff", "jpg"), (b"\x89PNG\r\n\x1a\n", "png"), (b"II*\0", "tif"), (b"MM\0*", "tif"), (b"II+\0", "tif"), (b"MM\0+", "tif"), (b"BM", "bmp"))


class ConversionError(Exception):
    """What is wrong with the files, for the user."""


class _Archives:
    """The archives of a split. An archive gets its name when it is complete."""

    def __init__(self, out: str, split: str, limit: int) -> None:
        self.out, self.split, self.limit = out, split, limit
        self.samples = self.unlabelled = self.count = self.used = 0
        self.archive: Optional[tarfile.TarFile] = None

    def path(self) -> str:
        return os.path.join(self.out, f"{self.split}-{self.count:05d}.tar")

    def add(self, files: dict[str, bytes]) -> None:
        if self.archive is not None and self.used >= self.limit:
            self.close()
        if self.archive is None:
            if os.path.exists(self.path()):
                raise ConversionError(f"{self.path()} exists: choose a new folder")
            self.archive = tarfile.open(self.path() + ".tmp", "w", format=tarfile.USTAR_FORMAT)
        for ending, data in files.items():
            info = tarfile.TarInfo(f"{self.samples:08d}.{ending}")
            info.size = len(data)
            self.archive.addfile(info, io.BytesIO(data))
            self.used += len(data)
        self.samples += 1

    def close(self) -> None:
        if self.archive is not None:
            self.archive.close()
            os.rename(self.path() + ".tmp", self.path())
            self.archive, self.used = None, 0
            self.count += 1

    def drop(self) -> None:
        """Removes an archive that is not complete."""
        if self.archive is not None:
            self.archive.close()
            os.remove(self.path() + ".tmp")
            self.archive = None


def _ending(data: bytes) -> Optional[str]:
    """The ending of an image's name, by its first bytes; None: cresnet does not read such images."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((ending for magic, ending in _ENDINGS if data.startswith(magic)), None)


def _split(path: str) -> str:
    name = os.path.splitext(os.path.basename(path))[0]
    found = re.match(r"(.+?)-\d+-of-\d+", name)
    if found:
        return found[1]
    return os.path.basename(os.path.dirname(os.path.abspath(path))) if name.isdigit() else name


def _features(schema: Any) -> dict[str, Any]:
    """What Hugging Face's datasets has written about the columns; empty without it."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return features if isinstance(features, dict) else {}


def _class_names(feature: Any) -> Optional[list[str]]:
    """The names of a ClassLabel, or of a list of them."""
    while isinstance(feature, list) and feature:
        feature = feature[0]
    while isinstance(feature, dict) and isinstance(feature.get("feature"), dict):
        feature = feature["feature"]
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    if isinstance(names, dict):  # of older files: {"0": "cat"}
        names = [names[str(k)] for k in range(len(names))]
    return [str(name) for name in names] if names else None


def _column(path: str, schema: Any, wanted: Optional[str], usual: tuple[str, ...], typed: list[str], option: str) -> str:
    """The name of a column: as the user says, by its type, or by its usual name."""
    if wanted is None:
        wanted = typed[0] if len(typed) == 1 else next((name for name in usual if name in schema.names), None)
    if wanted is None or wanted not in schema.names:
        raise ConversionError(f"{path}: name the column with {option}: it has {', '.join(schema.names)}")
    return wanted


def _rows(file: Any, image: str, label: str) -> Iterator[tuple[Any, Any]]:
    for batch in file.iter_batches(batch_size=256, columns=[image, label]):
        yield from zip(batch.column(batch.schema.names.index(image)).to_pylist(), batch.column(batch.schema.names.index(label)).to_pylist())


def _sample(where: str, image: Any, label: Any, names: Optional[list[str]]) -> Optional[dict[str, bytes]]:
    """The files of a row; None: it has no label."""
    data = image.get("bytes") if isinstance(image, dict) else image
    if not isinstance(data, bytes):
        path = image.get("path") if isinstance(image, dict) else None
        raise ConversionError(f"{where}: no bytes of an image" + (f", only the path {path}: embed the images (embed_external_files)" if path else ""))
    ending = _ending(data)
    if ending is None:
        raise ConversionError(f"{where}: no image of a format that cresnet reads (JPEG, PNG, WebP, TIFF, BMP)")
    if label is None or label == -1:
        return None
    labels = label if isinstance(label, list) else [label]
    for each in labels:
        if isinstance(each, bool) or not isinstance(each, (int, str)) or (isinstance(each, int) and not 0 <= each < (len(names) if names else 1 << 31)):
            raise ConversionError(f"{where}: the label {each!r} is neither a class number nor a text")
    if isinstance(label, list):
        return {ending: data, "json": json.dumps({"label": label}).encode()}
    return {"cls": str(label).encode(), ending: data}


def _check_names(path: str, names: list[str]) -> None:
    if any(not name.strip() or any(ord(c) < 32 for c in name) for name in names):
        raise ConversionError(f"{path}: a class name is empty or has control characters")


def convert(files: list[str], out: str, *, image: Optional[str] = None, label: Optional[str] = None, archive_bytes: int = _ARCHIVE_BYTES) -> dict[str, tuple[int, int]]:
    """Writes the archives. Returns for each split the number of samples, and of rows without a label, which are left out."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ConversionError('needs pyarrow: pip install "cresnet[parquet]"') from None
    os.makedirs(out, exist_ok=True)
    archives: dict[str, _Archives] = {}
    try:
        names = _convert_files(parquet, files, out, image, label, archive_bytes, archives)
    finally:
        for writer in archives.values():
            writer.drop()
    if names:
        with open(os.path.join(out, "classes.txt"), "w", encoding="utf-8") as text:
            text.writelines(name.strip() + "\n" for name in names)
    return {split: (writer.samples, writer.unlabelled) for split, writer in archives.items()}


def _convert_files(parquet: Any, files: list[str], out: str, image: Optional[str], label: Optional[str], archive_bytes: int,
                   archives: dict[str, _Archives]) -> Optional[list[str]]:
    """Returns the names of the classes."""
    names: Optional[list[str]] = None
    for number, path in enumerate(files):
        try:
            file = parquet.ParquetFile(path)
        except (OSError, ValueError) as error:
            raise ConversionError(f"{path}: cannot be read as Parquet: {error}") from None
        features = _features(file.schema_arrow)
        of_images = [name for name, feature in features.items() if isinstance(feature, dict) and feature.get("_type") == "Image"]
        of_labels = [name for name, feature in features.items() if _class_names(feature)]
        image_column = _column(path, file.schema_arrow, image, ("image", "img"), of_images, "--image")
        label_column = _column(path, file.schema_arrow, label, ("label", "labels"), of_labels, "--label")
        own = _class_names(features.get(label_column))
        if number and own != names:
            raise ConversionError(f"{path}: its class names are not those of {files[0]}")
        _check_names(path, own or [])
        names = own
        writer = archives.setdefault(_split(path), _Archives(out, _split(path), archive_bytes))
        for row, (pixels, given) in enumerate(_rows(file, image_column, label_column)):
            sample = _sample(f"{path}: row {row}", pixels, given, names)
            if sample is None:
                writer.unlabelled += 1
            else:
                writer.add(sample)
    for writer in archives.values():
        writer.close()
    return names


def main(arguments: Optional[list[str]] = None) -> int:
    """The command. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m cresnet.from_parquet", description="Writes Parquet files of images as tar archives for data.kind = tar.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="Parquet files; the split is the part of the name before -00000-of-00005")
    parser.add_argument("out", metavar="OUT", help="folder of the archives")
    parser.add_argument("--image", metavar="COLUMN", help="the column of images (default: by its type, or image)")
    parser.add_argument("--label", metavar="COLUMN", help="the column of labels (default: by its type, or label)")
    parser.add_argument("--archive-bytes", type=int, default=_ARCHIVE_BYTES, metavar="N", help="an archive ends after so many bytes (1 GiB)")
    options = parser.parse_args(arguments)
    try:
        splits = convert(options.files, options.out, image=options.image, label=options.label, archive_bytes=options.archive_bytes)
    except (ConversionError, OSError) as error:
        print(f"from_parquet: {error}", file=sys.stderr)
        return 1
    for split, (samples, unlabelled) in splits.items():
        print(f"{split}: {samples} samples" + (f", {unlabelled} rows without a label left out" if unlabelled else ""))
    print(f"train with data.kind=tar data.root={options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
