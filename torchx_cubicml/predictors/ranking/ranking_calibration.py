"""From scores that only rank to throughput: a rising curve through what trials of like score measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LEAST_SLOPE = 1e-3  # log throughput per unit of score: where the curve is flat, the order of scores still shows


@dataclass(frozen=True, slots=True, kw_only=True)
class RisingCurve:
    """Isotonic regression whose steps are joined by straight lines, and which goes on rising beyond both ends.

    Args:
        scores: of the joints, ascending, ``[n_joints]``.
        values: of the joints, ascending, ``[n_joints]``.
        slope: beyond the ends and, at least ``_LEAST_SLOPE``, everywhere.
    """

    scores: NDArray[np.float64]
    values: NDArray[np.float64]
    slope: float

    @classmethod
    def through(cls, scores: NDArray[np.float64], values: NDArray[np.float64], weights: NDArray[np.float64]) -> Self:
        """Return the curve of least squares through points ``[n]`` that count by ``weights`` > 0, n >= 1."""
        order = np.lexsort((values, scores))
        blocks: list[tuple[float, float, float]] = []  # weight, mean score, mean value
        for score, value, weight in np.column_stack([scores, values, weights])[order].tolist():
            block = (weight, score, value)
            while blocks and (blocks[-1][2] >= block[2] or blocks[-1][1] == block[1]):  # pool adjacent violators, ties
                block = _pooled(blocks.pop(), block)
            blocks.append(block)
        joints = np.array(blocks)
        return cls(scores=joints[:, 1], values=joints[:, 2], slope=_slope(scores, values, weights))

    def __call__(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values at ``scores``, of any shape; strictly rising."""
        beyond = np.maximum(scores - self.scores[-1], 0.0) + np.minimum(scores - self.scores[0], 0.0)
        inside = np.interp(scores, self.scores, self.values)
        return np.asarray(inside + self.slope * beyond + _LEAST_SLOPE * scores, dtype=np.float64)


def _pooled(left: tuple[float, float, float], right: tuple[float, float, float]) -> tuple[float, float, float]:
    weight = left[0] + right[0]
    share = left[0] / weight
    return weight, share * left[1] + (1 - share) * right[1], share * left[2] + (1 - share) * right[2]


def _slope(scores: NDArray[np.float64], values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    scores = scores - np.average(scores, weights=weights)
    variance = float(np.average(scores**2, weights=weights))
    if variance <= 0:
        return 0.0
    covariance = float(np.average(scores * (values - np.average(values, weights=weights)), weights=weights))
    return max(covariance / variance, 0.0)
