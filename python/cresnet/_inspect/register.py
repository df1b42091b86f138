"""cresnet._inspect.register: image registration: compares the details of thumbnails after one is moved and scaled to fit the other."""
from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .images import SIDE

Floats = npt.NDArray[np.float32]

_MOVED, _SCALED = 3.0, 0.125  # largest move in pixels of a thumbnail, and largest change of scale
_STEPS = 4
_DETAIL = 7  # pixels: what differs from the mean of a square of this size is a detail
_HOPELESS = 0.4  # correlation after two steps: such pairs are not followed
_LEAST_SEEN = 0.6  # of the pixels
_NOISE = 6.0  # of 255: spread of details that recompression changes


def blurred(images: Floats) -> Floats:
    """A binomial filter of 3 x 3: details of one pixel do not survive recompression."""
    padded = np.pad(images, [(0, 0), (1, 1), (1, 1)], mode="edge")
    rows = (padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]) / 4
    return np.asarray((rows[:, :, :-2] + 2 * rows[:, :, 1:-1] + rows[:, :, 2:]) / 4, np.float32)


def _box(images: Floats) -> Floats:
    """Sums of _DETAIL x _DETAIL pixels; outside of the image there are zeros."""
    half = _DETAIL // 2
    total = np.cumsum(np.pad(images, [(0, 0), (half + 1, half), (half + 1, half)]), axis=1)
    total = total[:, _DETAIL:] - total[:, :-_DETAIL]
    total = np.cumsum(total, axis=2)
    return np.asarray(total[:, :, _DETAIL:] - total[:, :, :-_DETAIL], np.float32)


def _warped(images: Floats, move: Floats) -> tuple[Floats, Floats]:
    """Bilinear samples of images [P,SIDE,SIDE] at x * (1 + move[:,2]) + move[:,0], y * (1 + move[:,3]) + move[:,1] from the centre, and where they lie
    inside (1) or outside (0)."""
    centre = (SIDE - 1) / 2
    grid = np.arange(SIDE, dtype=np.float32) - centre
    weights, inside = [], []
    for axis in (0, 1):
        at = grid * (1 + move[:, axis + 2, None]) + move[:, axis, None] + centre
        inside.append(((at >= 0) & (at <= SIDE - 1)).astype(np.float32))
        # [P, to, from]: at most two samples of a line are not 0
        weights.append(np.maximum(0, 1 - np.abs(at.clip(0, SIDE - 1)[:, :, None] - np.arange(SIDE, dtype=np.float32))))
    return weights[1] @ images @ weights[0].transpose(0, 2, 1), inside[1][:, :, None] * inside[0][:, None]


def registered(first: Floats, second: Floats) -> Floats:
    """[P] correlations of the details of images [P,SIDE,SIDE], after the second ones were moved, scaled, and changed in brightness and contrast so that
    they fit best, by Gauss-Newton steps."""
    score, left = np.zeros(len(first), np.float32), np.arange(len(first))
    move = np.zeros((len(first), 4), np.float32)
    first, second = (np.asarray(images - images.mean(axis=(1, 2), keepdims=True), np.float32) for images in (first, second))
    for step in range(_STEPS):
        move = _better_move(first, second, move)
        if step in (1, _STEPS - 1):
            found = _correlation(first, *_warped(second, move))
            score[left] = np.maximum(score[left], found)
            keep = found >= _HOPELESS
            left, first, second, move = left[keep], first[keep], second[keep], move[keep]
    return score


def _better_move(first: Floats, second: Floats, move: Floats) -> Floats:
    """One Gauss-Newton step of the moves [P,4]."""
    warped, seen = _warped(second, move)
    grid = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2
    columns = np.empty((len(first), 6, SIDE, SIDE), np.float32)  # derivatives by moves in x and y, scales in x and y, contrast, brightness
    columns[:, 0], columns[:, 1] = np.gradient(warped, axis=2), np.gradient(warped, axis=1)
    columns[:, 2], columns[:, 3] = columns[:, 0] * grid, columns[:, 1] * grid[:, None]
    columns[:, 4], columns[:, 5] = warped, 1
    flat = columns.reshape(len(first), 6, SIDE * SIDE)
    weighted = flat * seen.reshape(len(first), 1, SIDE * SIDE)
    normal = (weighted @ flat.transpose(0, 2, 1)).astype(np.float64) + 0.03 * np.eye(6)
    right = (weighted @ first.reshape(len(first), SIDE * SIDE, 1)).astype(np.float64)
    solved = np.linalg.solve(normal, right)[:, :, 0]
    change = solved[:, :4] / np.where(np.abs(solved[:, 4:5]) < 0.1, 0.1, solved[:, 4:5])
    largest = np.array([_MOVED, _MOVED, _SCALED, _SCALED])
    return np.asarray((move + change).clip(-largest, largest), np.float32)


def _correlation(first: Floats, second: Floats, seen: Floats) -> Floats:
    """Of the details of both, where the second one is seen. Details are divided by their spread in their surroundings, because otherwise a frame or a
    silhouette alone makes images alike."""
    area = np.maximum(_box(seen), 1)
    parts = []
    for image in (first, second):
        detail = np.asarray((image - _box(image * seen) / area) * seen, np.float32)
        parts.append((detail / np.sqrt(_box(detail * detail) / area + _NOISE**2)).reshape(len(seen), SIDE * SIDE))
    a, b = parts
    product = (a * b).sum(axis=1) / np.sqrt(np.maximum((a * a).sum(axis=1) * (b * b).sum(axis=1), 1e-6))
    return np.asarray(np.where(seen.mean(axis=(1, 2)) >= _LEAST_SEEN, product, 0), np.float32)
