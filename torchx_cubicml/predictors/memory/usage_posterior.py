"""Posterior of a workload's memory usage after outcomes and recorded peaks, as a normal distribution.

Its mode (Laplace approximation) serves to fit the priors; ``expectation_propagation`` gives the final moments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.memory.usage_model import MemoryUsage, UsageTerms
    from torchx_cubicml.records.values import Value

STEEPNESS = 40.0  # logits per log of memory: the limit is sharp, though the usage is uncertain
LOGIT_PER_SD = 1.7  # a logistic curve with this slope approximates a standard normal one
_PRIOR_PEAK_SD, _PRIOR_PEAKS = 0.08, 1  # prior median of it, and the weight of that prior in peaks
_USABLE, _USABLE_SD = -0.1, 0.15  # log share of a device's memory that can be allocated
_DEVICES_GIB = 1e-3, 1e6  # plausible range of the memory of a device
_LOG_HEADROOM = 0.4  # log capacity over the largest peak, likewise
_CAPACITY_SD = 0.7  # of the log capacity, if only peaks are known
_STEPS = 60
PEAK_SD, _LEAST_PEAK_SD = 0.03, 0.005  # log standard deviation of a recorded peak, at first and at least
_EFFECT_SCALE = 0.5


@dataclass(frozen=True, slots=True)
class Capacity:
    """Log-normal prior of the memory capacity in the unit of peaks: median and deviation of the logarithm."""

    median: float
    deviation: float

    @classmethod
    def of(cls, peaks: NDArray[np.float64], device_memory_gib: float | None) -> Self:
        """Return the prior from the memory of the device, else from the largest of ``peaks`` (logarithms)."""
        if device_memory_gib is not None:
            return cls(math.log(device_memory_gib) + _USABLE, _USABLE_SD)
        largest = float(np.nanmax(peaks)) if np.isfinite(peaks).any() else 0.0
        return cls(largest + _LOG_HEADROOM, _CAPACITY_SD)

    def at(self, theta: float) -> float:
        """Return the log capacity ``theta`` deviations from the median."""
        return self.median + self.deviation * theta


def device_memory_gib(rows: Sequence[Mapping[str, Value]]) -> float | None:
    """Return the memory of the smallest device that launches reported; ``None`` without a plausible report.

    On processors a rank's share depends on the number of ranks, so reports that differ tell nothing.
    """
    reported = (row.get("device_memory_gib") for row in rows)
    known = {float(each) for each in reported if isinstance(each, int | float) and not isinstance(each, bool)}
    plausible = [each for each in known if _DEVICES_GIB[0] <= each <= _DEVICES_GIB[1]]
    is_open = len(plausible) > 1 and any(row.get("device") == "cpu" for row in rows)
    return None if is_open else min(plausible, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Outcomes and peaks with their posterior; the last entry of ``theta`` is the capacity, see ``Capacity``.

    The last ``n_feared`` outcomes are failures that are taken for certain, though they are not known.
    """

    usage: MemoryUsage
    terms: UsageTerms
    fitted: NDArray[np.float64]
    trust: NDArray[np.float64]
    peaks: NDArray[np.float64]
    capacity: Capacity
    precision: NDArray[np.float64]
    peak_sd: float
    steepness: float
    n_feared: int = 0

    def with_failures(self, terms: UsageTerms) -> Observations:
        """Return the observations of ``terms``: the known configs come first, and the others are failures."""
        n_failures = len(terms.batch) - len(self.fitted)
        return replace(
            self,
            terms=terms,
            fitted=np.concatenate([self.fitted, np.zeros(n_failures)]),
            trust=np.concatenate([self.trust, np.ones(n_failures)]),
            peaks=np.concatenate([self.peaks, np.full(n_failures, np.nan)]),
            n_feared=self.n_feared + n_failures,
        )

    def with_effect_prior(self, theta: NDArray[np.float64], covariance: NDArray[np.float64]) -> Observations:
        """Return the observations with the prior precision re-estimated from the effects of each unknown parameter.

        This is the EM step for a Student-t prior of one degree of freedom on each group of effects.
        """
        squares = theta**2 + np.diag(covariance)
        unknown = self.usage.unknown
        precision = self.precision.copy()
        for group in range(int(unknown.max()) + 1):
            entries = np.flatnonzero(unknown == group)
            precision[entries] = (1.0 + len(entries)) / (_EFFECT_SCALE**2 + squares[entries].sum())
        return replace(self, precision=precision)

    def with_peak_noise(self, theta: NDArray[np.float64], covariance: NDArray[np.float64]) -> Observations:
        """Return the observations with the noise of peaks re-estimated from their residuals at ``theta``.

        After MacKay, the effective number of parameters that the peaks determine is subtracted from their number. A
        usage that predicts peaks precisely also predicts the limit precisely, so the steepness follows.
        """
        residuals, peak_jacobian = self.peak_residuals(theta)
        effective_parameters = float(np.einsum("ij,jk,ik->", peak_jacobian, covariance, peak_jacobian))
        squares = float(residuals @ residuals) * self.peak_sd**2 + _PRIOR_PEAKS * _PRIOR_PEAK_SD**2
        spread = max(
            math.sqrt(squares / (max(len(residuals) - effective_parameters, 1.0) + _PRIOR_PEAKS)), _LEAST_PEAK_SD
        )
        return replace(self, peak_sd=spread, steepness=max(STEEPNESS, LOGIT_PER_SD / spread))

    def peak_residuals(self, theta: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return residuals of recorded peaks, ``[n_peaks]``, and the Jacobian of their predictions, in deviations."""
        taken, usage_jacobian, _ = self.usage.taken(self.terms, theta[:-1])
        has_peak = np.isfinite(self.peaks)
        capacity_column = np.full((len(taken), 1), self.capacity.deviation)
        return (self.peaks - self.capacity.at(float(theta[-1])) - taken)[has_peak] / self.peak_sd, np.hstack(
            [usage_jacobian, capacity_column]
        )[has_peak] / self.peak_sd

    def margins(self, theta: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the log of capacity over usage of each config, ``[n]``, and its Jacobian, ``[n, m]``."""
        taken, usage_jacobian, capacity_jacobian = self.usage.taken(self.terms, theta[:-1])
        design = np.hstack([capacity_jacobian - usage_jacobian, np.zeros((len(taken), 1))])
        return np.asarray(capacity_jacobian @ theta[:-1] - taken, dtype=np.float64), design

    def log_posterior(self, theta: NDArray[np.float64]) -> float:
        """Return the logarithm of the posterior density, up to a constant."""
        taken, _, capacity_jacobian = self.usage.taken(self.terms, theta[:-1])
        logit = self.steepness * (capacity_jacobian @ theta[:-1] - taken)
        residuals, _ = self.peak_residuals(theta)
        loss = (self.trust * np.logaddexp(0.0, np.where(self.fitted > 0.5, -logit, logit))).sum()
        return float(-loss - 0.5 * residuals @ residuals - 0.5 * self.precision @ theta**2)

    def slope(self, theta: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the gradient of the log posterior, ``[m]``, and its negative Gauss-Newton curvature, ``[m, m]``."""
        taken, usage_jacobian, capacity_jacobian = self.usage.taken(self.terms, theta[:-1])
        capacity_column = np.zeros((len(taken), 1))
        design = self.steepness * np.hstack([capacity_jacobian - usage_jacobian, capacity_column])
        logit = self.steepness * (capacity_jacobian @ theta[:-1] - taken)
        probability = 1.0 / (1.0 + np.exp(-np.clip(logit, -30.0, 30.0)))
        gradient = design.T @ (self.trust * (self.fitted - probability)) - self.precision * theta
        curvature = (design.T * (self.trust * probability * (1.0 - probability))) @ design + np.diag(self.precision)
        residuals, peak_jacobian = self.peak_residuals(theta)
        return gradient + peak_jacobian.T @ residuals, curvature + peak_jacobian.T @ peak_jacobian


def most_probable(
    observations: Observations, start: NDArray[np.float64] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the MAP parameters and their Laplace covariance, by damped Newton steps."""
    theta = np.zeros(observations.usage.n_theta + 1) if start is None else start
    value = observations.log_posterior(theta)
    for _ in range(_STEPS):
        gradient, curvature = observations.slope(theta)
        step = np.linalg.solve(curvature, gradient)
        step *= min(1.0, 2.0 / (np.abs(step).max() + 1e-12))
        for damping in 0.5 ** np.arange(12):
            candidate = observations.log_posterior(theta + damping * step)
            if candidate > value:
                break
        else:
            break
        gain, theta, value = candidate - value, theta + damping * step, candidate
        if gain < 1e-5:
            break
    return theta, np.asarray(np.linalg.inv(observations.slope(theta)[1]), dtype=np.float64)
