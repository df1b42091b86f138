"""cresnet._inspect.duplicates: near-duplicates by a perceptual hash, whose candidates are compared after they are brought into register.

The hash is the low frequencies of a thumbnail (cosine transform of the grey image without its mean, and a few values of colour), scaled so that each has the
same spread over the dataset, as a vector of length 1. It is compared by the cosine instead of by bits: a crop of 5 % moves all frequencies a little, and
bits of values near 0 flip. Neighbours of a hash are only candidates. A candidate is a duplicate when one thumbnail, moved, scaled by at most an eighth and
changed in brightness and contrast, has the same details as the other."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np
import numpy.typing as npt

from .images import SIDE, Images
from .neighbours import groups_of, nearest, normalised
from .register import blurred, registered

Floats = npt.NDArray[np.float32]

_FREQUENCIES = 8
_COLOUR_WEIGHT = 0.5  # of a value of colour against one of brightness
_NEIGHBOURS = 8
_CANDIDATE = 0.6  # cosine of two hashes
_ALIKE, _CLOSE = 0.9, 0.6  # correlation of the details of duplicates; of pairs that are looked at twice
_CHROMA = 10.0  # of 255: root mean square of the difference of colours
_PART = 1024  # pairs that are compared at once
_FLAT = 3.0  # standard deviation of a thumbnail of one colour


@dataclass
class Duplicates:
    #: [P,2] places of images, the smaller first; equal thumbnails form a chain, not all their pairs.
    pairs: npt.NDArray[np.int64]
    #: [P] correlation of their details.
    similarity: Floats
    #: [N] the first image of the group that an image belongs to; the image itself when it has no duplicate.
    group: npt.NDArray[np.int64]


def find_duplicates(images: Images, features: Optional[Floats] = None) -> Duplicates:
    """features [N,F] of a network add candidates. Images of one colour and unreadable ones are left out: they are odd images."""
    usable = np.flatnonzero((images.width > 0) & (_spread(images.grey) >= _FLAT))
    if not len(usable):
        return Duplicates(np.zeros((0, 2), np.int64), np.zeros(0, np.float32), np.arange(len(images.width)))
    first, chained = _equal_thumbnails(images, usable)
    pairs = [_candidates(hashes(images, first), first, _CANDIDATE)]
    if features is not None:
        pairs.append(_candidates(normalised(features[first]), first, 0.9))
    candidates = np.unique(np.concatenate(pairs), axis=0)
    similarity = _compare(images, candidates)
    alike = similarity >= _ALIKE
    found = np.concatenate([chained, candidates[alike]])
    order = np.lexsort((found[:, 1], found[:, 0]))
    scores = np.concatenate([np.ones(len(chained), np.float32), similarity[alike]])
    return Duplicates(found[order], scores[order], groups_of(len(images.width), found))


def _spread(grey: npt.NDArray[np.uint8]) -> Floats:
    return np.concatenate([grey[begin:begin + 8192].std(axis=(1, 2), dtype=np.float32) for begin in range(0, len(grey), 8192)] or [np.zeros(0, np.float32)])


def _equal_thumbnails(images: Images, usable: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The first image of each different thumbnail, and pairs of neighbours among the equal ones."""
    rows = np.array([hash(images.grey[i].tobytes() + images.chroma[i].tobytes()) for i in usable], np.int64)
    order = np.argsort(rows, kind="stable")
    same = rows[order][1:] == rows[order][:-1]
    chained = np.stack([usable[order][:-1][same], usable[order][1:][same]], axis=1)
    return np.sort(usable[order][np.concatenate([[True], ~same])]), chained


def hashes(images: Images, places: npt.NDArray[np.int64]) -> Floats:
    """[len(places), D] perceptual hashes of length 1."""
    u, x = np.arange(_FREQUENCIES)[:, None], np.arange(SIDE)[None]
    cosines = (np.cos(np.pi * u * (2 * x + 1) / (2 * SIDE))).astype(np.float32)
    rows = np.empty((len(places), _FREQUENCIES**2 - 1 + images.chroma.shape[1]), np.float32)
    for begin in range(0, len(places), 8192):
        part = places[begin:begin + 8192]
        low = cosines @ images.grey[part].astype(np.float32) @ cosines.T
        rows[begin:begin + 8192, :_FREQUENCIES**2 - 1] = low.reshape(len(part), -1)[:, 1:]
        rows[begin:begin + 8192, _FREQUENCIES**2 - 1:] = images.chroma[part]
    bright = rows[:, :_FREQUENCIES**2 - 1]
    # contrast is not compared: each image has the same spread
    bright /= np.maximum(np.sqrt(np.square(bright).mean(axis=1, keepdims=True)), 1e-6)
    rows /= np.maximum(rows.std(axis=0), 1e-6)
    rows[:, _FREQUENCIES**2 - 1:] *= _COLOUR_WEIGHT
    return normalised(rows)


def _candidates(vectors: Floats, places: npt.NDArray[np.int64], least: float) -> npt.NDArray[np.int64]:
    """[P,2] pairs of near vectors, the smaller place first."""
    if len(places) < 2:
        return np.zeros((0, 2), np.int64)
    near, cosine = nearest(vectors, vectors, _NEIGHBOURS + 1)
    keep = (near >= 0) & (cosine >= least) & (near != np.arange(len(places))[:, None])
    rows, columns = np.nonzero(keep)
    pairs = np.stack([places[rows], places[near[rows, columns]]], axis=1)
    return np.unique(np.sort(pairs, axis=1), axis=0)


def _compare(images: Images, pairs: npt.NDArray[np.int64]) -> Floats:
    """The correlation of details of each pair; 0 when colours differ."""
    score = np.zeros(len(pairs), np.float32)
    for begin in range(0, len(pairs), _PART):
        a, b = pairs[begin:begin + _PART].T
        first, second = (blurred(images.grey[i].astype(np.float32)) for i in (a, b))
        found = registered(first, second)
        again = np.flatnonzero((found < _ALIKE) & (found >= _CLOSE))  # the other way round, more or less may be seen
        found[again] = np.maximum(found[again], registered(second[again], first[again]))
        score[begin:begin + _PART] = found
        score[begin:begin + _PART][_colour_distance(images.chroma[a], images.chroma[b]) > _CHROMA] = 0
    return score


def _colour_distance(a: npt.NDArray[np.int8], b: npt.NDArray[np.int8]) -> Floats:
    """Root mean square of the difference of chroma, when one of the images is scaled by the best factor from 1/2 to 2, as a change of brightness does."""
    x, y = a.astype(np.float32), b.astype(np.float32)
    gain = ((x * y).sum(axis=1) / np.maximum((y * y).sum(axis=1), 1)).clip(0.5, 2)
    return np.asarray(np.sqrt(np.square(x - gain[:, None] * y).mean(axis=1)), np.float32)
