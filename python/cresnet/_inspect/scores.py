"""cresnet._inspect.scores: calibration (reliability diagram, expected calibration error), precision-recall curves and average precision."""
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .program import Floats

_SHOWN_POINTS = 100


def reliability(probabilities: Floats, labels: npt.NDArray[np.int32], bins: int) -> tuple[list[tuple[float, float, int, float, float]], float]:
    """Bins of equal width of the largest probability: from, to, number of images, mean probability, fraction that is correct; and the expected calibration
    error, the mean of |probability - fraction| over all images. A bin includes its upper end."""
    confidence, correct = probabilities.max(axis=1).astype(np.float64), probabilities.argmax(axis=1) == labels
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    means, fractions = (np.bincount(place, values, bins) / np.maximum(counts, 1) for values in (confidence, correct.astype(np.float64)))
    error = float((np.abs(means - fractions) * counts).sum() / max(len(labels), 1))
    return [(k / bins, (k + 1) / bins, int(counts[k]), float(means[k]), float(fractions[k])) for k in range(bins)], error


def precision_recall(scores: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.float64], ...]:
    """precision [K], recall [K] and thresholds [K], which rise: of the images whose score is at least the threshold. nan without positive images."""
    order = np.argsort(-scores, kind="stable")
    last_of_score = np.flatnonzero(np.diff(scores[order], append=-np.inf))
    found = np.cumsum(positive[order])[last_of_score]
    with np.errstate(invalid="ignore"):
        return (found / (last_of_score + 1))[::-1], (found / np.float64(positive.sum()))[::-1], scores[order][last_of_score][::-1]


def average_precision(precision: npt.NDArray[np.float64], recall: npt.NDArray[np.float64]) -> float:
    """The sum of the precisions, each times the recall that its threshold adds."""
    return float((precision * -np.diff(recall, append=0.0)).sum())


def curves(probabilities: Floats, labels: npt.NDArray[np.int32], classes: list[str], shown: int = 200) -> dict[str, Any]:
    """What curves.js draws: the reliability diagram and, of up to `shown` classes with images, the precisions and recalls at about 100 thresholds."""
    bins, error = reliability(probabilities, labels, 15)
    drawn = []
    for label in [int(k) for k in np.unique(labels)][:shown]:
        precision, recall, threshold = precision_recall(probabilities[:, label].astype(np.float64), labels == label)
        kept = np.unique(np.linspace(0, len(threshold) - 1, _SHOWN_POINTS).astype(int))
        drawn.append({"name": classes[label], "average": round(average_precision(precision, recall), 4),
                      **{name: np.round(values[kept], 4).tolist() for name, values in (("precision", precision), ("recall", recall), ("threshold", threshold))}})
    return {"reliability": {"bins": [[round(x, 5) for x in each] for each in bins], "error": round(error, 5)}, "classes": drawn}
