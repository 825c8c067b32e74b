"""Nonlinear least squares (Levenberg-Marquardt) for the formulas' constants; SciPy's import takes longer than a fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.predictors.roofline.training_layout import Array

# Initial damping, its factor after an accepted step, and its factor after a rejected one.
_DAMPING, _DECREASE, _INCREASE = 1e-3, 0.2, 4.0
_SHIFT = 1e-7  # of the finite differences
_TOLERANCE = 2e-5  # relative, of the sum of squares and of the length of the solution


def least_squares(misfit: Callable[[Array], Array], start: Array, *, steps: int) -> Array:
    """Return a local minimum of the sum of squares of ``misfit``, by Levenberg-Marquardt.

    Args:
        misfit: residuals, smooth, float64 ``[k]`` -> float64 ``[n]``, n >= k.
        start: float64 ``[k]``.
        steps: maximum number of steps, accepted or not.
    """
    theta, current = start, misfit(start)
    jacobian = _jacobian(misfit, theta, current)
    damping = _DAMPING
    for _ in range(steps):
        curvature = jacobian.T @ jacobian
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -jacobian.T @ current)
        residuals = misfit(theta + step)
        gain = current @ current - residuals @ residuals
        if not gain > 0.0:
            damping *= _INCREASE
            continue
        has_converged = gain < _TOLERANCE * (current @ current) or np.linalg.norm(step) < _TOLERANCE * np.linalg.norm(
            theta
        )
        theta, current, damping = theta + step, residuals, damping * _DECREASE
        if has_converged:
            break
        jacobian = _jacobian(misfit, theta, current)
    return theta


def _jacobian(misfit: Callable[[Array], Array], theta: Array, rest: Array) -> Array:
    shifts = _SHIFT * np.maximum(1.0, np.abs(theta))
    return np.stack([(misfit(theta + each) - rest) / each.sum() for each in np.diag(shifts)], axis=1)
