"""Expectation propagation (Minka, 2001) for the usage model: mean and covariance of its parameters after outcomes.

A launch that ran cuts off every usage above the capacity, and one that ran out cuts off every usage below. The
curvature at the mode (Laplace approximation) does not show that: where all launches ran, it stays that of the prior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.memory.usage_posterior import LOGIT_PER_SD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.memory.usage_posterior import Observations

_ROUNDS, _DAMPING = 40, 0.6  # updates of all factors at once, and the share of each that is made
_TOLERANCE = 0.01  # change of a margin, in its deviations, at which they end
# Least likelihood of a launch that ran, and of one that ran out of memory. A config may need more than the model of all
# configs says, so a failure tells less of others. With 0.08 probabilities of 0.1 to 0.5 are truer (they are 0.1 too low
# with 0.02), but a search of layer-wise FSDP runs out of memory more often.
_RAN, _RAN_OUT = 1e-3, 0.02
_LEAST_CAVITY = 1e-6  # share of a margin's precision that the other factors have at least
_MOST_STEP = 1.0  # of a parameter between two linearisations, in deviations of its prior


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factors:
    """Normal factors that stand for the outcomes: precision of each margin, and precision times mean, ``[n]`` each."""

    precision: NDArray[np.float64]
    shift: NDArray[np.float64]

    def damped(self, new: _Factors) -> _Factors:
        return _Factors(
            precision=self.precision + _DAMPING * (new.precision - self.precision),
            shift=self.shift + _DAMPING * (new.shift - self.shift),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcomes:
    """Likelihood of each outcome given its margin: ``least + (1 - least) * Phi(sign * margin / deviation)``.

    Args:
        sign: 1.0 where the launch ran, else -1.0, ``[n]``.
        least: likelihood where the margin says the opposite, ``[n]``.
        variance: of the limit, in squared logs of memory.
    """

    sign: NDArray[np.float64]
    least: NDArray[np.float64]
    variance: float

    @classmethod
    def of(cls, observations: Observations) -> Self:
        ran, place = observations.fitted > 0.5, np.arange(len(observations.fitted))
        is_feared = place >= len(place) - observations.n_feared
        return cls(
            sign=np.where(ran, 1.0, -1.0),
            # A failure of unknown cause may have another one.
            least=np.maximum(1.0 - observations.trust, np.where(ran | is_feared, _RAN, _RAN_OUT)),
            variance=(LOGIT_PER_SD / observations.steepness) ** 2,
        )

    def factors(self, mean: NDArray[np.float64], variance: NDArray[np.float64], old: _Factors) -> _Factors:
        """Return the factors that give the margins the moments that the exact likelihood of each would give them.

        Args:
            mean: of the margins under all factors, ``[n]``.
            variance: likewise.
            old: factors of the outcomes among them.
        """
        cavity_precision = np.maximum(1.0 / variance - old.precision, _LEAST_CAVITY / variance)
        cavity_variance = 1.0 / cavity_precision
        cavity_mean = (mean / variance - old.shift) * cavity_variance
        scale = np.sqrt(self.variance + cavity_variance)
        z = self.sign * cavity_mean / scale
        likelihood = self.least + (1.0 - self.least) * _normal_cdf(z)
        density = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
        slope = self.sign * (1.0 - self.least) * density / (likelihood * scale)  # of the log likelihood
        curvature = np.clip(slope**2 + self.sign * z * slope / scale, 0.0, (1.0 - 1e-9) * cavity_precision)
        precision = curvature / (1.0 - curvature * cavity_variance)
        new_mean = cavity_mean + cavity_variance * slope
        return _Factors(
            precision=precision, shift=new_mean * (cavity_precision + precision) - cavity_mean * cavity_precision
        )


def _normal_cdf(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard normal distribution function, ``[n]``; importing SciPy's takes longer than a fit."""
    return np.array([0.5 * math.erfc(-each / math.sqrt(2.0)) for each in z.tolist()], dtype=np.float64)


def propagated(
    observations: Observations, start: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean, ``[m]``, and covariance, ``[m, m]``, of the parameters; the first round is linear at ``start``."""
    outcomes = _Outcomes.of(observations)
    n_outcomes = len(outcomes.sign)
    factors = _Factors(precision=np.zeros(n_outcomes), shift=np.zeros(n_outcomes))
    at, margin = start, np.full(n_outcomes, np.inf)
    for _ in range(_ROUNDS):
        margins, design = observations.margins(at)
        offset = margins - design @ at
        residuals, peak_design = observations.peak_residuals(at)
        precision = np.diag(observations.precision) + peak_design.T @ peak_design
        covariance = np.linalg.inv(precision + (design.T * factors.precision) @ design)
        pull = peak_design.T @ (residuals + peak_design @ at)
        mean = covariance @ (pull + design.T @ (factors.shift - factors.precision * offset))
        at = at + np.clip(mean - at, -_MOST_STEP, _MOST_STEP)
        variance = np.maximum(np.einsum("ij,jk,ik->i", design, covariance, design), 1e-12)
        before, margin = margin, offset + design @ mean
        if (np.abs(margin - before) < _TOLERANCE * np.sqrt(variance)).all():
            break
        factors = factors.damped(outcomes.factors(margin, variance, factors))
    return mean, np.asarray(covariance, dtype=np.float64)
