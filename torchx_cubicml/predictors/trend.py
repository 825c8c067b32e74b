"""A robust linear trend: what can be said from a handful of trials, and beyond the range of those that ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# On slopes of standardised inputs, in trials' worth. The choice is by leave-one-out error, which is free for ridge.
_PENALTIES = (1.0, 4.0, 16.0, 64.0)
_HUBER = 1.5  # residuals beyond this many robust standard deviations pull no harder
_ROUNDS = 4  # of reweighting; the weights settle in three or four
_MOST_LEVERAGE = 4.0  # the trend itself is never believed to be off by more than two residual spreads


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Ridge regression with Huber weights on standardised inputs.

    Args:
        weights: intercept first, ``[1 + n_inputs]``.
        inverse: inverse of the penalised normal matrix, ``[1 + n_inputs, 1 + n_inputs]``.
        leave_one_out: residuals of the training rows, each predicted without itself, ``[n]``.
    """

    weights: NDArray[np.float64]
    inverse: NDArray[np.float64]
    leave_one_out: NDArray[np.float64]

    @classmethod
    def fit(
        cls, inputs: NDArray[np.float64], values: NDArray[np.float64], sample_weight: NDArray[np.float64] | None = None
    ) -> Self:
        """Return the trend of ``values`` ``[n]`` over ``inputs`` ``[n, n_inputs]``, n >= 1.

        Args:
            inputs: standardised.
            values: what is to be told.
            sample_weight: how much each counts, ``[n]``, > 0 and at most 1; ``None``: all alike.
        """
        sample_weight = np.ones(len(values)) if sample_weight is None else sample_weight
        fits = [cls._fit(_with_intercept(inputs), values, sample_weight, penalty) for penalty in _PENALTIES]
        return min(fits, key=lambda trend: float(np.average(np.abs(trend.leave_one_out), weights=sample_weight)))

    @classmethod
    def _fit(
        cls,
        design: NDArray[np.float64],
        values: NDArray[np.float64],
        sample_weight: NDArray[np.float64],
        penalty: float,
    ) -> Self:
        trust = sample_weight
        ridge = np.diag([1e-9, *[penalty] * (design.shape[1] - 1)])
        for _ in range(_ROUNDS):
            inverse = np.asarray(np.linalg.inv(design.T @ (trust[:, None] * design) + ridge), dtype=np.float64)
            weights = inverse @ (design.T @ (trust * values))
            residuals = values - design @ weights
            leverage = trust * np.einsum("ij,ij->i", design @ inverse, design)
            trust = sample_weight * _huber(residuals)
        alone = residuals / np.maximum(1.0 - leverage, 0.05)
        return cls(weights=weights, inverse=inverse, leave_one_out=alone)

    def predict(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the trend at ``inputs`` ``[n, n_inputs]``, float64 ``[n]``."""
        return np.asarray(_with_intercept(inputs) @ self.weights, dtype=np.float64)

    def leverage(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how many residual variances the trend itself is uncertain by at ``inputs``, float64 ``[n]``."""
        design = _with_intercept(inputs)
        variances = np.einsum("ij,ij->i", design @ self.inverse, design)
        return np.asarray(np.minimum(variances, _MOST_LEVERAGE), dtype=np.float64)


def _with_intercept(inputs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.hstack([np.ones((len(inputs), 1)), inputs])


def _huber(residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    limit = _HUBER * 1.4826 * float(np.median(np.abs(residuals))) + 1e-12
    return np.asarray(limit / np.maximum(np.abs(residuals), limit), dtype=np.float64)
