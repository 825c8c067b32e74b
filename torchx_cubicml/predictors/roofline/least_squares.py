"""Nonlinear least squares for the constants of the formulas: to import SciPy's takes longer than all that it solves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.predictors.roofline.training_layout import Array

_DAMPING, _LESS, _MORE = 1e-3, 0.2, 4.0  # at first, after a step that helped, after one that did not
_SHIFT = 1e-7  # of a difference that stands for a slope
_TOLERANCE = 2e-5  # of the sum of squares, and of the length of the solution


def least_squares(misfit: Callable[[Array], Array], start: Array, *, steps: int) -> Array:
    """Return where the squares of ``misfit`` add up to the least that is found, by Levenberg and Marquardt.

    Args:
        misfit: smooth, float64 ``[k]`` -> float64 ``[n]``, n >= k.
        start: float64 ``[k]``.
        steps: that are tried at most.
    """
    theta, rest = start, misfit(start)
    slope = _slope(misfit, theta, rest)
    damping = _DAMPING
    for _ in range(steps):
        curvature = slope.T @ slope
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -slope.T @ rest)
        found = misfit(theta + step)
        gain = rest @ rest - found @ found
        if not gain > 0.0:
            damping *= _MORE
            continue
        settled = gain < _TOLERANCE * (rest @ rest) or np.linalg.norm(step) < _TOLERANCE * np.linalg.norm(theta)
        theta, rest, damping = theta + step, found, damping * _LESS
        if settled:
            break
        slope = _slope(misfit, theta, rest)
    return theta


def _slope(misfit: Callable[[Array], Array], theta: Array, rest: Array) -> Array:
    shifts = _SHIFT * np.maximum(1.0, np.abs(theta))
    return np.stack([(misfit(theta + each) - rest) / each.sum() for each in np.diag(shifts)], axis=1)
