"""Factors on the parts of a sum, fitted to measured totals (MAP): the memory formulas' parts, to recorded peaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.roofline.least_squares import least_squares

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.training_layout import Array

_WIDTH = 0.5  # prior standard deviation of the logarithm of a factor, around 1
_NOISE = 0.1  # log error of a total up to which the loss is quadratic, beyond it linear
_STEPS = 50


def part_factors(parts: Array, totals: Array) -> Array:
    """Return one factor per part, float64 ``[n_parts]``, with which the parts add up to about the measured totals.

    Without a total, all factors are 1. A factor that no total informs about stays 1, too.

    Args:
        parts: of each sum, >= 0, with a sum above 0, float64 ``[n, n_parts]``.
        totals: as measured, > 0, float64 ``[n]``.

    >>> part_factors(np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([1.5, 3.0])).round(1).tolist()
    [1.5, 1.0]
    """
    start = np.zeros(parts.shape[1])
    if not len(totals):
        return np.exp(start)
    measured = np.log(totals)

    def misfit(logarithms: Array) -> Array:
        errors = (np.log(parts @ np.exp(logarithms)) - measured) / _NOISE
        robust = np.sign(errors) * np.sqrt(2.0 * (np.sqrt(1.0 + errors**2) - 1.0))
        return np.concatenate([robust, logarithms / _WIDTH])

    return np.exp(least_squares(misfit, start, steps=_STEPS))
