"""Per-workload feasibility: probability that a config fits in memory, from the few outcomes of one workload.

The memory usage is a sum of positive parts (``usage_model``). A launch that ran took less than the capacity, and one
that ran out of memory took more. A recorded peak is a measurement of the usage. Dominance rules take precedence.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.gaussian_process.points import ConfigEncoder
from torchx_cubicml.predictors.memory.dominance import DominanceRules, decided
from torchx_cubicml.predictors.memory.expectation_propagation import propagated
from torchx_cubicml.predictors.memory.order import MemoryOrder
from torchx_cubicml.predictors.memory.usage_model import MemoryUsage
from torchx_cubicml.predictors.memory.usage_posterior import (
    PEAK_SD,
    STEEPNESS,
    Capacity,
    Observations,
    device_memory_gib,
    most_probable,
)
from torchx_cubicml.predictors.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import TrainingTable
    from torchx_cubicml.records.values import Scalar, Value

_UNKNOWN_CAUSE = 0.6  # weight of a failure whose cause is not known
_MOST_LOGIT = 8.0
_FEWEST_FOR_PRESSURE = 6  # recorded peaks, from which the pressure on memory is taken from them
_PEAK_SD_STEPS = 4  # of fitting it
_PRESSURE_FROM, _MOST_PRESSURE = 0.9, 1.2  # share of the capacity from which there is pressure; cap on the pressure
# Most parameters have no effect on memory, some a large one: a Student-t prior, fitted by iterative reweighting (EM).
_EFFECT_ROUNDS = 5


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

    def fit(self, history: TrainingTable) -> Self:
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
            capacity = Capacity.of(peaks, device_memory_gib([*history.rows, *history.failures]))
            observations = Observations(
                usage=self.usage_,
                terms=terms,
                fitted=fitted,
                trust=trust,
                peaks=peaks,
                capacity=capacity,
                precision=np.ones(self.usage_.n_theta + 1),
                peak_sd=PEAK_SD,
                steepness=STEEPNESS,
            )
            self.theta_, self.covariance_ = most_probable(observations)
            for _ in range(_EFFECT_ROUNDS if (self.usage_.unknown >= 0).any() else 0):
                observations = observations.with_effect_prior(self.theta_, self.covariance_)
                self.theta_, self.covariance_ = most_probable(observations, self.theta_)
            for _ in range(_PEAK_SD_STEPS if np.isfinite(observations.peaks).any() else 0):
                observations = observations.with_peak_noise(self.theta_, self.covariance_)
                self.theta_, self.covariance_ = most_probable(observations, self.theta_)
            self.theta_, self.covariance_ = propagated(observations, self.theta_)
            self.observations_, self.features_ = observations, features
        return self

    @property
    def has_peaks_(self) -> bool:
        """True where enough peaks are recorded to fit their noise; otherwise outcomes are the main evidence."""
        return int(np.isfinite(self.observations_.peaks).sum()) >= _FEWEST_FOR_PRESSURE

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
            feared.theta_, feared.covariance_ = propagated(feared.observations_, self.theta_)
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
        return decided(verdicts, probability)
