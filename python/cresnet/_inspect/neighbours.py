"""cresnet._inspect.neighbours: nearest neighbours of many vectors without a quadratic pass, and outliers by their distance."""
from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .extra import extra

_SMALL = 1000  # vectors: so few are compared with each other
_PROBED = 16  # cells that are searched for a vector
_TRAINED = 64  # vectors for each cell that the centres are computed from
_BATCH = 16384


def normalised(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rows of length 1; a row of zeros stays."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), np.float32)


def nearest(base: npt.NDArray[np.float32], queries: npt.NDArray[np.float32], k: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """For each query [Q,D] the places [Q,k] of the most similar vectors of base [N,D], best first, and their inner products [Q,k]; -1: there are
    fewer. Vectors have length 1. The search is approximate: base is divided into about 4 * sqrt(N) cells around centres, and the 16 cells nearest to
    the query are searched: N * sqrt(N) products in all. Equal calls give equal results."""
    faiss = extra("faiss")
    base, queries = np.ascontiguousarray(base, np.float32), np.ascontiguousarray(queries, np.float32)
    k = min(k, len(base))
    if len(base) <= _SMALL:
        index = faiss.IndexFlatIP(base.shape[1])
    else:
        cells = int(4 * np.sqrt(len(base)))
        cells = min(cells, len(base) // 8)
        quantiser = faiss.IndexFlatIP(base.shape[1])
        index = faiss.IndexIVFFlat(quantiser, base.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
        index.cp.max_points_per_centroid, index.cp.min_points_per_centroid, index.cp.niter = _TRAINED, 1, 8
        index.nprobe = _PROBED
        index.train(base)
    for begin in range(0, len(base), _BATCH):
        index.add(base[begin:begin + _BATCH])
    places = np.empty((len(queries), k), np.int64)
    products = np.empty((len(queries), k), np.float32)
    for begin in range(0, len(queries), _BATCH):
        products[begin:begin + _BATCH], places[begin:begin + _BATCH] = index.search(queries[begin:begin + _BATCH], k)
    return places, products


def groups_of(count: int, pairs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The connected components of pairs [P,2]: for each of `count` places the smallest place of its group."""
    parent = np.arange(count)

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for a, b in pairs:
        first, second = root(int(a)), root(int(b))
        parent[max(first, second)] = min(first, second)
    for place in np.unique(pairs):
        parent[place] = root(int(place))
    return parent


def outliers(features: npt.NDArray[np.float32], k: int = 10) -> npt.NDArray[np.float64]:
    """For each vector the mean distance (1 - cosine) to its k nearest neighbours, divided by the median of all: an outlier has a large one."""
    vectors = normalised(features)
    _, products = nearest(vectors, vectors, k + 1)
    distance = 1 - products[:, 1:].mean(axis=1).astype(np.float64)
    return np.asarray(distance / max(float(np.median(distance)), 1e-12))
