"""cresnet._inspect.register: compares the details of thumbnails after one is moved and scaled to fit the other."""
from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .images import SIDE

Floats = npt.NDArray[np.float32]

_MOVED, _SCALED = 3.0, 0.125  # largest move in pixels of a thumbnail, and largest change of scale
_STEPS = 4
_DETAIL = 7  # pixels: what differs from the mean of a square of this size is a detail
_LEAST_SEEN = 0.6  # of the pixels


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
    count = len(first)
    move = np.zeros((count, 4), np.float32)
    grid = (np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2) / SIDE
    best = np.zeros(count, np.float32)
    for step in range(_STEPS + 1):
        warped, seen = _warped(second, move)
        best = np.maximum(best, _correlation(first, warped, seen))
        if step == _STEPS:
            break
        across, down = np.gradient(warped, axis=2), np.gradient(warped, axis=1)
        columns = np.stack([across, down, across * grid * SIDE, down * grid[:, None] * SIDE, warped, np.ones_like(warped)], axis=1)
        columns = columns.reshape(count, 6, -1)
        weighted = columns * seen.reshape(count, 1, -1)
        normal = weighted @ columns.transpose(0, 2, 1) + 1e-3 * np.eye(6, dtype=np.float32) * SIDE
        solved = np.linalg.solve(normal.astype(np.float64), weighted.astype(np.float64) @ first.reshape(count, -1, 1).astype(np.float64))[:, :, 0]
        change = solved[:, :4] / np.where(np.abs(solved[:, 4:5]) < 0.1, 0.1, solved[:, 4:5])
        move = (move + change.astype(np.float32)).clip([-_MOVED, -_MOVED, -_SCALED, -_SCALED], [_MOVED, _MOVED, _SCALED, _SCALED]).astype(np.float32)
    return best


def _correlation(first: Floats, second: Floats, seen: Floats) -> Floats:
    """Of the details of both, where the second one is seen."""
    area = np.maximum(_box(seen), 1)
    a, b = (((image - _box(image * seen) / area) * seen).reshape(len(seen), -1) for image in (first, second))
    product = (a * b).sum(axis=1) / np.sqrt(np.maximum((a * a).sum(axis=1) * (b * b).sum(axis=1), 1e-6))
    return np.asarray(np.where(seen.mean(axis=(1, 2)) >= _LEAST_SEEN, product, 0), np.float32)
