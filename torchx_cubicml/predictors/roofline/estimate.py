"""Estimates of the roofline formulas for many configs: the record, and the spread outside the measured range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.intervals import NOISE_FLOOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

PRIOR_ERROR = 0.5  # prior log error of the formulas, before anything is measured
_PER_DOUBLING = 0.15  # additional log error for each doubling beyond the measured range


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineEstimate:
    """Predictions of the formulas for ``n`` encoded rows, ``n_covered`` of which contain all facts that they need.

    Args:
        covered: bool ``[n]``.
        logarithm: of the expected throughput, float64 ``[n_covered]``, and so below.
        slower: decrease of the logarithm in the slow mode.
        slow: probability of the slow mode.
        beyond: doublings outside the measured range.
        thin: doublings outside the range with many measurements.
        novel: variance of the logarithm for unseen categories.
        traits: features that carry over between scales and devices: shares of the step time, the probability of the
            slow mode, and coordinates of the layout, ``[n_covered, n_traits]``.
    """

    covered: NDArray[np.bool_]
    logarithm: NDArray[np.float64]
    slower: NDArray[np.float64]
    slow: NDArray[np.float64]
    beyond: NDArray[np.float64]
    thin: NDArray[np.float64]
    novel: NDArray[np.float64]
    traits: NDArray[np.float64]


def variance_of_modes(estimate: RooflineEstimate) -> NDArray[np.float64]:
    """Return the variance of the logarithm due to the unknown mode of a job, ``[n_covered]``."""
    return np.asarray(estimate.slow * (1.0 - estimate.slow) * estimate.slower**2)


def widen_spread(spread: NDArray[np.float64], estimate: RooflineEstimate) -> NDArray[np.float64]:
    """Return ``spread``, float64 ``[n_covered]``, widened outside the range with many jobs.

    Each doubling adds an error.
    """
    variance = spread**2 + (_PER_DOUBLING * estimate.thin) ** 2 + estimate.novel
    return np.asarray(np.maximum(np.sqrt(variance), NOISE_FLOOR))


def doublings_outside(
    coordinates: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the doublings by which log2 ``coordinates`` ``[n, n_coordinates]`` leave a range, summed, ``[n]``."""
    return np.asarray((np.maximum(low - coordinates, 0.0) + np.maximum(coordinates - high, 0.0)).sum(axis=1))


def completed_by(features: NDArray[np.float64], usual: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Return ``features`` ``[n, n_columns]`` with ``usual`` values ``[n_columns]`` where they are NaN."""
    return features if usual is None else np.where(np.isnan(features), usual, features)
