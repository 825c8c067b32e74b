"""The probability that a config fits, for the few outcomes of one workload: where the memory wall is believed to run.

What configs take is a sum of positive parts (``usage_model``). A launch that ran took less than there is, one that
ran out of memory more; where the peak of a launch was recorded, it says how much. Hard limits come first.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.gaussian_process.points import ConfigEncoder
from torchx_cubicml.predictors.memory.cross_workload import KNOWN_TO_FIT
from torchx_cubicml.predictors.memory.dominance import BATCH, DominanceRules
from torchx_cubicml.predictors.memory.usage_model import MemoryUsage
from torchx_cubicml.predictors.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import History
    from torchx_cubicml.predictors.memory.usage_model import UsageTerms
    from torchx_cubicml.records.trial import Scalar, Value

_STEEPNESS = 40.0  # logits per log of memory: the wall is sharp, what is believed to stand before it is not
_STEEPNESS_OF_SD = 1.7  # logits that rise like a normal of deviation 1
_UNKNOWN_CAUSE = 0.6  # weight of a failure whose cause is not known
_MOST_LOGIT = 8.0
_PEAK_SD, _LEAST_PEAK_SD = 0.03, 0.005  # log standard deviation of a recorded peak, at first and at least
_USUAL_PEAK_SD, _USUAL_WEIGHT = 0.015, 2  # the same as believed once it is learned, and how many peaks that weighs
_FEWEST_PEAKS = 6  # from which it is
_EXACT_STEPS = 4  # of learning it
_ROOM_SD = 0.7  # of the logarithm of the memory there is, beside the largest peak
_ROOM = 0.4
_USABLE, _USABLE_SD = -0.1, 0.15  # log share of a device's memory that can be allocated
_STEPS = 60
_DEVICES_GIB = 1e-3, 1e6  # between which the memory of a device is
_CROWDED, _MOST_CROWDED = 0.9, 1.2  # share of the memory from which there is little room; what is beyond the wall
# Most parameters do nothing to memory, some a lot: their effects have a Student-t prior, found by rounds of weighing.
_USUAL_EFFECT, _EFFECT_ROUNDS = 0.2, 5


class WorkloadFeasibility:
    """Probability that a config of one workload fits.

    Args:
        compare: see ``CrossWorkloadFeasibility``.
        tuned: parameters that candidates may vary -> their choices.
    """

    def __init__(self, *, compare: Sequence[str] = (), tuned: Mapping[str, Sequence[Scalar]] | None = None) -> None:
        self.compare = tuple(compare)
        self.tuned = dict(tuned or {})

    def fit(self, history: History) -> Self:
        """Learn from the outcomes of ``history``, one at least, and from the peaks that it knows."""
        self.limits_ = DominanceRules.of(zip(history.rows, history.feasible.tolist(), strict=True), names=self.compare)
        self.compared_ = history.columns.of(name for name in self.compare if name != BATCH)
        self.known_ = {row.tobytes() for row in history.features[:, self.compared_]}
        features = np.vstack([history.features, history.columns.encode(list(history.failures))])
        fitted = np.concatenate([history.feasible, np.zeros(len(history.failures))]).astype(np.float64)
        peaks = np.full(len(features), np.nan)
        if history.peak_memory_gib is not None:
            peaks[: len(history.rows)] = np.where(history.feasible, np.log(history.peak_memory_gib), np.nan)
        trust = np.where(np.arange(len(features)) < len(history.rows), 1.0, _UNKNOWN_CAUSE)
        self.appetite_ = MemoryUsage.of(ConfigEncoder.of(features, history.columns, tuned=self.tuned), history.columns)
        with one_thread():
            terms = self.appetite_.terms(features)
            room = _Room.of(peaks, _device_memory_gib([*history.rows, *history.failures]))
            observations = _Observations(
                usage=self.appetite_,
                terms=terms,
                fitted=fitted,
                trust=trust,
                peaks=peaks,
                room=room,
                precision=np.ones(self.appetite_.n_theta + 1),
                peak_sd=_PEAK_SD,
                steepness=_STEEPNESS,
            )
            self.theta_, self.covariance_ = _most_probable(observations)
            for _ in range(_EFFECT_ROUNDS if (self.appetite_.unknown >= 0).any() else 0):
                observations = observations.as_sparse_as(self.theta_, self.covariance_)
                self.theta_, self.covariance_ = _most_probable(observations, self.theta_)
            for _ in range(_EXACT_STEPS if np.isfinite(observations.peaks).sum() >= _FEWEST_PEAKS else 0):
                observations = observations.as_exact_as(self.theta_, self.covariance_)
                self.theta_, self.covariance_ = _most_probable(observations, self.theta_)
            self.observations_, self.features_ = observations, features
        return self

    @property
    def knows_peaks_(self) -> bool:
        """Whether recorded peaks, rather than outcomes alone, say what configs take."""
        return int(np.isfinite(self.observations_.peaks).sum()) >= _FEWEST_PEAKS

    def memory_pressure(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how far into the last tenth of the memory rows reach, ``[n, 1]``: 0 before it, 1 at the wall.

        An allocator that finds little room frees what it had kept and asks again, which takes time.
        """
        with one_thread():
            taken, _, roomy = self.appetite_.taken(self.appetite_.terms(features), self.theta_[:-1])
        fullness = np.exp(taken - roomy @ self.theta_[:-1])
        return np.asarray(np.clip((fullness - _CROWDED) / (1.0 - _CROWDED), 0.0, _MOST_CROWDED)[:, None])

    @property
    def steepness_(self) -> float:
        """Logits per log of memory, as learned."""
        return self.observations_.steepness

    def fearing(self, features: NDArray[np.float64]) -> Self:
        """Return this wall as if the rows of ``features``, ``[n, n_columns]``, had run out of memory."""
        told = copy(self)
        told.features_ = np.vstack([self.features_, features])
        with one_thread():
            told.observations_ = self.observations_.with_failures(self.appetite_.terms(told.features_))
            told.theta_, told.covariance_ = _most_probable(told.observations_, self.theta_)
        return told

    def probability(self, features: NDArray[np.float64], rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return the probability to fit, float64 ``[n]``; 0.0 exactly where a config is known not to fit."""
        known = np.full(len(features), np.nan)
        # Only rows that are encoded alike can be alike, which is cheaper to see than the rows themselves.
        near = [place for place, row in enumerate(features[:, self.compared_]) if row.tobytes() in self.known_]
        known[near] = self.limits_.verdicts([rows[place] for place in near])
        with one_thread():
            taken, grows, roomy = self.appetite_.taken(self.appetite_.terms(features), self.theta_[:-1])
            slope = roomy - grows
            margin = roomy @ self.theta_[:-1] - taken
            covariance = self.covariance_[:-1, :-1]
            variance = np.einsum("ij,ij->i", slope @ covariance, slope)
            # MacKay's moderated output: what is not known draws towards one half.
            logit = self.steepness_ * margin / np.sqrt(1.0 + np.pi * self.steepness_**2 * variance / 8.0)
        learned = 1.0 / (1.0 + np.exp(-np.clip(logit, -_MOST_LOGIT, _MOST_LOGIT)))
        return np.where(known == 0.0, 0.0, np.where(known == 1.0, np.maximum(learned, KNOWN_TO_FIT), learned))


@dataclass(frozen=True, slots=True)
class _Room:
    """What the memory there is may be, in the unit of peaks: a median and a deviation, of the logarithm."""

    median: float
    deviation: float

    @classmethod
    def of(cls, peaks: NDArray[np.float64], device_memory_gib: float | None) -> Self:
        """Return it by the memory of the device, else by the largest of ``peaks`` (logarithms)."""
        if device_memory_gib is not None:
            return cls(math.log(device_memory_gib) + _USABLE, _USABLE_SD)
        largest = float(np.nanmax(peaks)) if np.isfinite(peaks).any() else 0.0
        return cls(largest + _ROOM, _ROOM_SD)

    def at(self, theta: float) -> float:
        """Return its logarithm, ``theta`` deviations off the median."""
        return self.median + self.deviation * theta


def _device_memory_gib(rows: Sequence[Mapping[str, Value]]) -> float | None:
    """Return the memory of the smallest device that launches were seen on; ``None`` where none was."""
    seen = (row.get("device_memory_gib") for row in rows)
    known = (float(each) for each in seen if isinstance(each, int | float) and not isinstance(each, bool))
    return min((each for each in known if _DEVICES_GIB[0] <= each <= _DEVICES_GIB[1]), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observations:
    """Outcomes and peaks; ``theta`` is the appetite's and, last, the memory that there is in the unit of peaks."""

    usage: MemoryUsage
    terms: UsageTerms
    fitted: NDArray[np.float64]
    trust: NDArray[np.float64]
    peaks: NDArray[np.float64]
    room: _Room
    precision: NDArray[np.float64]
    peak_sd: float
    steepness: float

    def with_failures(self, terms: UsageTerms) -> _Observations:
        """Return the observations of ``terms``, whose first configs are those known, and of which the others failed."""
        more = len(terms.batch) - len(self.fitted)
        return replace(
            self,
            terms=terms,
            fitted=np.concatenate([self.fitted, np.zeros(more)]),
            trust=np.concatenate([self.trust, np.ones(more)]),
            peaks=np.concatenate([self.peaks, np.full(more, np.nan)]),
        )

    def as_sparse_as(self, theta: NDArray[np.float64], covariance: NDArray[np.float64]) -> _Observations:
        """Return the observations with a prior as narrow as the effects of each unknown parameter seem to be.

        The step of expectation and maximisation for a Student-t prior of one degree of freedom on each of them.
        """
        squares = theta**2 + np.diag(covariance)
        unknown = self.usage.unknown
        precision = self.precision.copy()
        for group in range(int(unknown.max()) + 1):
            at = np.flatnonzero(unknown == group)
            precision[at] = (1.0 + len(at)) / (_USUAL_EFFECT**2 + squares[at].sum())
        return replace(self, precision=precision)

    def as_exact_as(self, theta: NDArray[np.float64], covariance: NDArray[np.float64]) -> _Observations:
        """Return the observations with peaks trusted as far as they stand from what ``theta`` makes of them.

        After MacKay: those that ``theta`` was bent to meet do not count. What tells peaks so well tells the wall, too.
        """
        off, told = self._peaks_off(theta)
        bent = float(np.einsum("ij,jk,ik->", told, covariance, told))
        squares = float(off @ off) * self.peak_sd**2 + _USUAL_WEIGHT * _USUAL_PEAK_SD**2
        spread = max(math.sqrt(squares / (max(len(off) - bent, 1.0) + _USUAL_WEIGHT)), _LEAST_PEAK_SD)
        return replace(self, peak_sd=spread, steepness=max(_STEEPNESS, _STEEPNESS_OF_SD / spread))

    def _peaks_off(self, theta: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return how far recorded peaks stand off, ``[n_peaks]``, and how what is made of them moves, in deviations."""
        taken, grows, _ = self.usage.taken(self.terms, theta[:-1])
        seen = np.isfinite(self.peaks)
        last = np.full((len(taken), 1), self.room.deviation)
        return (self.peaks - self.room.at(float(theta[-1])) - taken)[seen] / self.peak_sd, np.hstack([grows, last])[
            seen
        ] / self.peak_sd

    def log_posterior(self, theta: NDArray[np.float64]) -> float:
        taken, _, roomy = self.usage.taken(self.terms, theta[:-1])
        logit = self.steepness * (roomy @ theta[:-1] - taken)
        off, _ = self._peaks_off(theta)
        loss = (self.trust * np.logaddexp(0.0, np.where(self.fitted > 0.5, -logit, logit))).sum()
        return float(-loss - 0.5 * off @ off - 0.5 * self.precision @ theta**2)

    def slope(self, theta: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the gradient of the log posterior, ``[m]``, and its negative Gauss-Newton curvature, ``[m, m]``."""
        taken, grows, roomy = self.usage.taken(self.terms, theta[:-1])
        last = np.zeros((len(taken), 1))
        design = self.steepness * np.hstack([roomy - grows, last])
        logit = self.steepness * (roomy @ theta[:-1] - taken)
        chance = 1.0 / (1.0 + np.exp(-np.clip(logit, -30.0, 30.0)))
        gradient = design.T @ (self.trust * (self.fitted - chance)) - self.precision * theta
        curvature = (design.T * (self.trust * chance * (1.0 - chance))) @ design + np.diag(self.precision)
        off, told = self._peaks_off(theta)
        return gradient + told.T @ off, curvature + told.T @ told


def _most_probable(
    observations: _Observations, start: NDArray[np.float64] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the parameters of highest posterior density and their covariance, by damped Newton steps."""
    theta = np.zeros(observations.usage.n_theta + 1) if start is None else start
    value = observations.log_posterior(theta)
    for _ in range(_STEPS):
        gradient, curvature = observations.slope(theta)
        step = np.linalg.solve(curvature, gradient)
        step *= min(1.0, 2.0 / (np.abs(step).max() + 1e-12))
        for damping in 0.5 ** np.arange(12):
            found = observations.log_posterior(theta + damping * step)
            if found > value:
                break
        else:
            break
        gain, theta, value = found - value, theta + damping * step, found
        if gain < 1e-5:
            break
    return theta, np.asarray(np.linalg.inv(observations.slope(theta)[1]), dtype=np.float64)
