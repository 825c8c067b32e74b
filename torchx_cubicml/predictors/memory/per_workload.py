"""Per-workload feasibility: probability that a config fits in memory, from the few outcomes of one workload.

The memory usage is a sum of positive parts (``usage_model``). A launch that ran took less than the capacity, and one
that ran out of memory took more. A recorded peak is a measurement of the usage. Dominance rules take precedence.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.gaussian_process.points import ConfigEncoder
from torchx_cubicml.predictors.memory.cross_workload import KNOWN_TO_FIT
from torchx_cubicml.predictors.memory.dominance import DominanceRules
from torchx_cubicml.predictors.memory.order import MemoryOrder
from torchx_cubicml.predictors.memory.usage_model import MemoryUsage
from torchx_cubicml.predictors.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import History
    from torchx_cubicml.predictors.memory.usage_model import UsageTerms
    from torchx_cubicml.records.trial import Scalar, Value

_STEEPNESS = 40.0  # logits per log of memory: the limit is sharp, though the usage is uncertain
_LOGIT_PER_SD = 1.7  # a logistic curve with this slope approximates a standard normal one
_UNKNOWN_CAUSE = 0.6  # weight of a failure whose cause is not known
_MOST_LOGIT = 8.0
_PEAK_SD, _LEAST_PEAK_SD = 0.03, 0.005  # log standard deviation of a recorded peak, at first and at least
_PRIOR_PEAK_SD, _PRIOR_PEAKS = 0.015, 2  # prior median once it is fitted, and the weight of that prior in peaks
_FEWEST_PEAKS = 6  # from which it is fitted
_PEAK_SD_STEPS = 4  # of fitting it
_CAPACITY_SD = 0.7  # of the log capacity, if only peaks are known
_LOG_HEADROOM = 0.4  # log capacity over the largest peak, likewise
_USABLE, _USABLE_SD = -0.1, 0.15  # log share of a device's memory that can be allocated
_STEPS = 60
_DEVICES_GIB = 1e-3, 1e6  # plausible range of the memory of a device
_PRESSURE_FROM, _MOST_PRESSURE = 0.9, 1.2  # share of the capacity from which there is pressure; cap on the pressure
# Most parameters have no effect on memory, some a large one: a Student-t prior, fitted by iterative reweighting (EM).
_EFFECT_SCALE, _EFFECT_ROUNDS = 0.2, 5


class WorkloadFeasibility:
    """Classifier of feasibility: probability that a config of one workload fits in memory.

    Args:
        order: see ``CrossWorkloadFeasibility``.
        tuned: parameters that candidates may vary -> their choices.
    """

    def __init__(
        self, *, order: MemoryOrder | None = None, tuned: Mapping[str, Sequence[Scalar]] | None = None
    ) -> None:
        self.order = order or MemoryOrder()
        self.tuned = dict(tuned or {})

    def fit(self, history: History) -> Self:
        """Fit on the outcomes of ``history``, one at least, and on its recorded peaks."""
        self.dominance_ = DominanceRules.of_history(history, self.order)
        features = np.vstack([history.features, history.columns.encode(list(history.failures))])
        fitted = np.concatenate([history.feasible, np.zeros(len(history.failures))]).astype(np.float64)
        peaks = np.full(len(features), np.nan)
        if history.peak_memory_gib is not None:
            peaks[: len(history.rows)] = np.where(history.feasible, np.log(history.peak_memory_gib), np.nan)
        trust = np.where(np.arange(len(features)) < len(history.rows), 1.0, _UNKNOWN_CAUSE)
        self.usage_ = MemoryUsage.of(ConfigEncoder.of(features, history.columns, tuned=self.tuned), history.columns)
        with one_thread():
            terms = self.usage_.terms(features)
            capacity = _Capacity.of(peaks, _device_memory_gib([*history.rows, *history.failures]))
            observations = _Observations(
                usage=self.usage_,
                terms=terms,
                fitted=fitted,
                trust=trust,
                peaks=peaks,
                capacity=capacity,
                precision=np.ones(self.usage_.n_theta + 1),
                peak_sd=_PEAK_SD,
                steepness=_STEEPNESS,
            )
            self.theta_, self.covariance_ = _most_probable(observations)
            for _ in range(_EFFECT_ROUNDS if (self.usage_.unknown >= 0).any() else 0):
                observations = observations.with_effect_prior(self.theta_, self.covariance_)
                self.theta_, self.covariance_ = _most_probable(observations, self.theta_)
            for _ in range(_PEAK_SD_STEPS if np.isfinite(observations.peaks).sum() >= _FEWEST_PEAKS else 0):
                observations = observations.with_peak_noise(self.theta_, self.covariance_)
                self.theta_, self.covariance_ = _most_probable(observations, self.theta_)
            self.observations_, self.features_ = observations, features
        return self

    @property
    def has_peaks_(self) -> bool:
        """True where enough peaks are recorded to fit their noise; otherwise outcomes are the main evidence."""
        return int(np.isfinite(self.observations_.peaks).sum()) >= _FEWEST_PEAKS

    def memory_pressure(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the position of rows within the last tenth of the memory, ``[n, 1]``: 0 before it, 1 at the limit.

        An allocator that is short of memory frees its cached blocks and allocates again, which takes time.
        """
        with one_thread():
            taken, _, capacity_jacobian = self.usage_.taken(self.usage_.terms(features), self.theta_[:-1])
        fullness = np.exp(taken - capacity_jacobian @ self.theta_[:-1])
        return np.asarray(np.clip((fullness - _PRESSURE_FROM) / (1.0 - _PRESSURE_FROM), 0.0, _MOST_PRESSURE)[:, None])

    @property
    def steepness_(self) -> float:
        """Logits per log of memory, as fitted."""
        return self.observations_.steepness

    def fantasize_failures(self, features: NDArray[np.float64], rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return the classifier conditioned on fantasy outcomes: ``n`` rows, with their features, ran out of memory."""
        feared = copy(self)
        feared.dominance_ = self.dominance_.fearing(rows)
        feared.features_ = np.vstack([self.features_, features])
        with one_thread():
            feared.observations_ = self.observations_.with_failures(self.usage_.terms(feared.features_))
            feared.theta_, feared.covariance_ = _most_probable(feared.observations_, self.theta_)
        return feared

    def probability(self, features: NDArray[np.float64], rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return the probability to fit, float64 ``[n]``; 0.0 exactly where a config is known not to fit."""
        verdicts = self.dominance_.verdicts(rows)
        with one_thread():
            taken, usage_jacobian, capacity_jacobian = self.usage_.taken(self.usage_.terms(features), self.theta_[:-1])
            slope = capacity_jacobian - usage_jacobian
            margin = capacity_jacobian @ self.theta_[:-1] - taken
            covariance = self.covariance_[:-1, :-1]
            variance = np.einsum("ij,ij->i", slope @ covariance, slope)
            # MacKay's moderated output: uncertainty moves the probability towards one half.
            logit = self.steepness_ * margin / np.sqrt(1.0 + np.pi * self.steepness_**2 * variance / 8.0)
        probability = 1.0 / (1.0 + np.exp(-np.clip(logit, -_MOST_LOGIT, _MOST_LOGIT)))
        return np.where(
            verdicts == 0.0, 0.0, np.where(verdicts == 1.0, np.maximum(probability, KNOWN_TO_FIT), probability)
        )


@dataclass(frozen=True, slots=True)
class _Capacity:
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


def _device_memory_gib(rows: Sequence[Mapping[str, Value]]) -> float | None:
    """Return the memory of the smallest device that launches reported; ``None`` without a plausible report."""
    reported = (row.get("device_memory_gib") for row in rows)
    known = (float(each) for each in reported if isinstance(each, int | float) and not isinstance(each, bool))
    return min((each for each in known if _DEVICES_GIB[0] <= each <= _DEVICES_GIB[1]), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observations:
    """Outcomes and peaks with their posterior; the last entry of ``theta`` is the capacity, see ``_Capacity``."""

    usage: MemoryUsage
    terms: UsageTerms
    fitted: NDArray[np.float64]
    trust: NDArray[np.float64]
    peaks: NDArray[np.float64]
    capacity: _Capacity
    precision: NDArray[np.float64]
    peak_sd: float
    steepness: float

    def with_failures(self, terms: UsageTerms) -> _Observations:
        """Return the observations of ``terms``: the known configs come first, and the others are failures."""
        n_failures = len(terms.batch) - len(self.fitted)
        return replace(
            self,
            terms=terms,
            fitted=np.concatenate([self.fitted, np.zeros(n_failures)]),
            trust=np.concatenate([self.trust, np.ones(n_failures)]),
            peaks=np.concatenate([self.peaks, np.full(n_failures, np.nan)]),
        )

    def with_effect_prior(self, theta: NDArray[np.float64], covariance: NDArray[np.float64]) -> _Observations:
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

    def with_peak_noise(self, theta: NDArray[np.float64], covariance: NDArray[np.float64]) -> _Observations:
        """Return the observations with the noise of peaks re-estimated from their residuals at ``theta``.

        After MacKay, the effective number of parameters that the peaks determine is subtracted from their number. A
        usage that predicts peaks precisely also predicts the limit precisely, so the steepness follows.
        """
        residuals, peak_jacobian = self._peak_residuals(theta)
        effective_parameters = float(np.einsum("ij,jk,ik->", peak_jacobian, covariance, peak_jacobian))
        squares = float(residuals @ residuals) * self.peak_sd**2 + _PRIOR_PEAKS * _PRIOR_PEAK_SD**2
        spread = max(
            math.sqrt(squares / (max(len(residuals) - effective_parameters, 1.0) + _PRIOR_PEAKS)), _LEAST_PEAK_SD
        )
        return replace(self, peak_sd=spread, steepness=max(_STEEPNESS, _LOGIT_PER_SD / spread))

    def _peak_residuals(self, theta: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return residuals of recorded peaks, ``[n_peaks]``, and the Jacobian of their predictions, in deviations."""
        taken, usage_jacobian, _ = self.usage.taken(self.terms, theta[:-1])
        has_peak = np.isfinite(self.peaks)
        capacity_column = np.full((len(taken), 1), self.capacity.deviation)
        return (self.peaks - self.capacity.at(float(theta[-1])) - taken)[has_peak] / self.peak_sd, np.hstack(
            [usage_jacobian, capacity_column]
        )[has_peak] / self.peak_sd

    def log_posterior(self, theta: NDArray[np.float64]) -> float:
        taken, _, capacity_jacobian = self.usage.taken(self.terms, theta[:-1])
        logit = self.steepness * (capacity_jacobian @ theta[:-1] - taken)
        residuals, _ = self._peak_residuals(theta)
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
        residuals, peak_jacobian = self._peak_residuals(theta)
        return gradient + peak_jacobian.T @ residuals, curvature + peak_jacobian.T @ peak_jacobian


def _most_probable(
    observations: _Observations, start: NDArray[np.float64] | None = None
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
