"""cresnet._inspect.images: reads every image once: a thumbnail for the search for duplicates, and what makes images odd."""
from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from .reading import Reader

SIDE = 32  # pixels of a thumbnail
COLOUR_SIDE = 4
_CHUNK = 512
_DARK, _BRIGHT, _FLAT = 12, 243, 3  # of 255: mean of dark and of bright images; standard deviation of images of one colour
_SMALL, _LONG = 0.25, 2.5  # of the median: short side; aspect ratio


@dataclass
class Images:
    """What one pass has found out about N images. An unreadable image has the width 0."""
    #: [N, SIDE, SIDE] the whole image in grey, squashed to a square.
    grey: npt.NDArray[np.uint8]
    #: [N, COLOUR_SIDE * COLOUR_SIDE * 2] differences of chroma (Cb, Cr) from grey, squashed further.
    chroma: npt.NDArray[np.int8]
    #: [N] in pixels, upright.
    width: npt.NDArray[np.int32]
    height: npt.NDArray[np.int32]
    #: Why an image could not be read, by its place.
    unreadable: dict[int, str]


def read_images(reader: Reader, files: list[str], threads: int = 0, on_progress: Optional[Callable[[int, int], None]] = None) -> Images:
    """Reads all images with `threads` threads; 0: one for each core. The memory is SIDE * SIDE + 40 bytes for each image."""
    count = len(files)
    images = Images(np.zeros((count, SIDE, SIDE), np.uint8), np.zeros((count, 2 * COLOUR_SIDE**2), np.int8), np.zeros(count, np.int32),
                    np.zeros(count, np.int32), {})
    done, lock = [0], threading.Lock()

    def read(begin: int) -> None:
        for index in range(begin, min(begin + _CHUNK, count)):
            try:
                image = reader.open(files[index], 4 * SIDE)
                _measure(image, images, index)
            except OSError as error:
                images.unreadable[index] = str(error)
        with lock:
            done[0] += min(_CHUNK, count - begin)
            if on_progress:
                on_progress(done[0], count)

    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        for _ in pool.map(read, range(0, count, _CHUNK)):
            pass
    images.unreadable = dict(sorted(images.unreadable.items()))
    return images


def _measure(image: Any, images: Images, index: int) -> None:
    images.width[index], images.height[index] = image.info.get("size", image.size)
    small = image.resize((SIDE, SIDE), 4 if min(image.size) >= SIDE else 2)  # box or bilinear
    parts = np.asarray(small.convert("YCbCr"))
    images.grey[index] = parts[:, :, 0]
    blocks = parts[:, :, 1:].reshape(COLOUR_SIDE, SIDE // COLOUR_SIDE, COLOUR_SIDE, SIDE // COLOUR_SIDE, 2)
    images.chroma[index] = (blocks.mean(axis=(1, 3)) - 128).clip(-127, 127).astype(np.int8).ravel()


def _mean_and_spread(grey: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation of each image; in parts, because NumPy computes them from copies as floats."""
    mean, spread = np.zeros(len(grey)), np.zeros(len(grey))
    for begin in range(0, len(grey), 8192):
        part = grey[begin:begin + 8192]
        mean[begin:begin + 8192], spread[begin:begin + 8192] = part.mean(axis=(1, 2)), part.std(axis=(1, 2), dtype=np.float32)
    return mean, spread


def odd_images(images: Images) -> list[tuple[int, str, float]]:
    """Images unlike the others by their form alone: place, reason, and how far from usual (larger is further). An image has one line at most."""
    found = [(index, f"unreadable: {why}", 1e9) for index, why in images.unreadable.items()]
    read = np.flatnonzero(images.width > 0)
    if not len(read):
        return found
    means, spread = _mean_and_spread(images.grey)
    means, spread = means[read], spread[read]
    short = np.minimum(images.width, images.height)[read]
    ratio = np.log(images.width[read] / images.height[read])
    usual_short, usual_ratio = float(np.median(short)), float(np.median(ratio))
    grey = (np.abs(images.chroma[read]).max(axis=1) <= 1)
    few_grey = 0 < grey.mean() < 0.02
    for place, index in enumerate(read):
        further = abs(ratio[place] - usual_ratio)
        if spread[place] < _FLAT:
            found.append((int(index), "one colour", 100 - float(spread[place])))
        elif means[place] < _DARK:
            found.append((int(index), f"dark: mean brightness {means[place]:.0f} of 255", 80 - float(means[place])))
        elif means[place] > _BRIGHT:
            found.append((int(index), f"bright: mean brightness {means[place]:.0f} of 255", float(means[place]) - 200))
        elif further > np.log(_LONG):
            found.append((int(index), f"unusual shape: {images.width[index]}x{images.height[index]}", 10 * float(further)))
        elif short[place] < _SMALL * usual_short:
            found.append((int(index), f"small: {images.width[index]}x{images.height[index]}, usually {usual_short:.0f} on the short side",
                          usual_short / float(short[place])))
        elif few_grey and grey[place]:
            found.append((int(index), f"grey, as {grey.sum()} of {len(read)} images", 1.0))
    return sorted(found, key=lambda item: -item[2])
