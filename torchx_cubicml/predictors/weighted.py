"""Weighted statistics of measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def weighted_quantile(values: NDArray[np.float64], weights: NDArray[np.float64], q: float) -> float:
    """Return the ``q`` quantile of ``values`` ``[n]`` with ``weights`` ``[n]`` > 0, n >= 1 and 0 <= q <= 1.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.ones(3), 0.5)
    2.0
    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([9.0, 1.0, 1.0]), 0.5)
    2.4
    """
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    # Midpoints of the values' shares; with equal weights they are the positions that ``np.quantile`` uses.
    positions = np.concatenate([[0.0], np.cumsum(0.5 * (weights[1:] + weights[:-1]))])
    return float(np.interp(q * positions[-1], positions, values))
