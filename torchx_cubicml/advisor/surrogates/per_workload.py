"""Surrogate of one workload: a Gaussian process and a memory model fitted to its own trials."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.advisor.surrogates.base import Forecast
from torchx_cubicml.predictors.features.rows import encoded
from torchx_cubicml.predictors.gaussian_process.process import drawn_from
from torchx_cubicml.predictors.memory.per_workload import WorkloadFeasibility

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.surrogates.base import Forecaster, Surrogate
    from torchx_cubicml.advisor.surrogates.transfer_prior import TransferPrior
    from torchx_cubicml.predictors import CrossWorkloadFeasibility
    from torchx_cubicml.predictors.features.history import History
    from torchx_cubicml.predictors.gaussian_process.process import GaussianProcess
    from torchx_cubicml.records.trial import Value

_LIKELY_TO_FIT = 0.8  # probability to fit below which a launch under way becomes a fantasy failure


@dataclass(frozen=True, slots=True, kw_only=True)
class PerWorkloadSurrogate:
    """Gaussian process of throughput and classifier of memory fit, fitted to the workload's own trials.

    Args:
        history: training trials.
        process: of the logarithm of throughput, or of its ratio to ``elsewhere``.
        memory: probability to fit.
        elsewhere: prior mean of the process; ``None`` where it does not raise the evidence.
        hopeful: the process with an optimistic prior mean, for ``optimistic``; ``None`` where there is none.
    """

    history: History
    process: GaussianProcess
    memory: WorkloadFeasibility | CrossWorkloadFeasibility
    elsewhere: TransferPrior | None = None
    hopeful: GaussianProcess | None = None

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Forecast:
        """Return the forecast of ``rows``; see ``Forecaster``."""
        features = encoded(self.history.columns, rows)
        logarithm, spread = self.process.latent(features)
        if self.elsewhere is not None:
            logarithm = logarithm + self.elsewhere.logarithms(rows)
        return Forecast(logarithm=logarithm, spread=spread, fits=self.memory.probability(features, rows))

    def outliers(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.bool_]:
        """Return whether rows are outliers, ``[n]``; see ``Surrogate``."""
        return self.process.outliers(encoded(self.history.columns, rows))

    def ensemble(self, *, one: bool) -> list[Surrogate]:
        """Return this surrogate alone: with measurements of its own the workload needs no other."""
        del one
        return [self]

    def fantasize(self, rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return this surrogate with fantasy observations at ``rows`` (kriging believer); see ``Surrogate``.

        Rows that may well not fit become fantasy failures, so that the batch stays away from similar configs.
        """
        if not rows:
            return self
        features = encoded(self.history.columns, rows)
        risky = features[self.memory.probability(features, rows) < _LIKELY_TO_FIT]
        memory = (
            self.memory.fearing(risky) if isinstance(self.memory, WorkloadFeasibility) and len(risky) else self.memory
        )
        return replace(self, process=self.process.fantasize(features), memory=memory)

    def optimistic(self) -> Self:
        """Return this surrogate with the optimistic prior mean; see ``Surrogate``.

        Larger micro batches have less overhead, and choices that take more memory are faster.
        """
        return self if self.hopeful is None else replace(self, process=self.hopeful, hopeful=None)

    def sample_function(self, rows: Sequence[Mapping[str, Value]], *, rng: np.random.Generator) -> Forecaster:
        """Return a Thompson sample drawn at ``rows``; see ``Surrogate``."""
        return replace(self, process=self.process.sample_function(encoded(self.history.columns, rows), rng=rng))

    def sample(
        self, rows: Sequence[Mapping[str, Value]], *, count: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Return joint samples over all likely shares of noise, ``[count, n]``; see ``JointSurrogate``."""
        features = encoded(self.history.columns, rows)
        prior_mean = self.elsewhere.logarithms(rows) if self.elsewhere is not None else np.zeros(len(rows))
        alternatives = self.process.alternatives(features)
        probabilities = np.array([probability for probability, _, _ in alternatives])
        counts = rng.multinomial(count, probabilities / probabilities.sum()).tolist()
        samples = [
            drawn_from(mean, covariance, count=each, rng=rng)
            for each, (_, mean, covariance) in zip(counts, alternatives, strict=True)
        ]
        return np.vstack(samples) + prior_mean

    def ratios(
        self, rows: Sequence[Mapping[str, Value]], over: Mapping[str, Value]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation of log ratios over all likely shares of noise; see ``JointSurrogate``."""
        features = encoded(self.history.columns, [*rows, over])
        prior_mean = self.elsewhere.logarithms([*rows, over]) if self.elsewhere is not None else np.zeros(len(rows) + 1)
        first_moment: NDArray[np.float64] = np.zeros(len(rows))
        second_moment: NDArray[np.float64] = np.zeros(len(rows))
        alternatives = self.process.alternatives(features)
        total = sum(probability for probability, _, _ in alternatives)
        for probability, mean, covariance in alternatives:
            gain = (mean + prior_mean)[:-1] - (mean + prior_mean)[-1]
            variance = np.diag(covariance)[:-1] + covariance[-1, -1] - 2.0 * covariance[:-1, -1]
            first_moment += probability / total * gain
            second_moment += probability / total * (gain**2 + np.maximum(variance, 0.0))
        return first_moment, np.sqrt(np.maximum(second_moment - first_moment**2, 1e-10))
