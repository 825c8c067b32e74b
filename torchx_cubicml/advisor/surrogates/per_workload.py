"""What a Gaussian process and a memory model expect that learned from a workload's own trials."""

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

_SURE_TO_FIT = 0.8  # what is less sure is not launched beside its like


@dataclass(frozen=True, slots=True, kw_only=True)
class PerWorkloadSurrogate:
    """Learned from the workload's own trials: a Gaussian process and what says how likely configs fit."""

    history: History
    process: GaussianProcess
    memory: WorkloadFeasibility | CrossWorkloadFeasibility
    elsewhere: TransferPrior | None = None
    hopeful: GaussianProcess | None = None

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Forecast:
        """See ``Forecaster``."""
        features = encoded(self.history.columns, rows)
        logarithm, spread = self.process.latent(features)
        if self.elsewhere is not None:
            logarithm = logarithm + self.elsewhere.logarithms(rows)
        return Forecast(logarithm=logarithm, spread=spread, fits=self.memory.probability(features, rows))

    def outliers(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.bool_]:
        """See ``Surrogate``."""
        return self.process.outliers(encoded(self.history.columns, rows))

    def ensemble(self, *, one: bool) -> list[Surrogate]:
        """What the workload's own measurements say needs no other."""
        del one
        return [self]

    def fantasize(self, rows: Sequence[Mapping[str, Value]]) -> Self:
        """See ``Surrogate``: kriging believer; what may well not fit is feared not to, so that others differ."""
        if not rows:
            return self
        features = encoded(self.history.columns, rows)
        risky = features[self.memory.probability(features, rows) < _SURE_TO_FIT]
        memory = (
            self.memory.fearing(risky) if isinstance(self.memory, WorkloadFeasibility) and len(risky) else self.memory
        )
        return replace(self, process=self.process.fantasize(features), memory=memory)

    def optimistic(self) -> Self:
        """See ``Surrogate``: larger micro batches waste less, and memory buys speed."""
        return self if self.hopeful is None else replace(self, process=self.hopeful, hopeful=None)

    def sample_function(self, rows: Sequence[Mapping[str, Value]], *, rng: np.random.Generator) -> Forecaster:
        """See ``Surrogate``."""
        return replace(self, process=self.process.sample_function(encoded(self.history.columns, rows), rng=rng))

    def sample(
        self, rows: Sequence[Mapping[str, Value]], *, count: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """See ``JointSurrogate``: of all shares of noise that are likely."""
        features = encoded(self.history.columns, rows)
        known = self.elsewhere.logarithms(rows) if self.elsewhere is not None else np.zeros(len(rows))
        likely = self.process.alternatives(features)
        chances = np.array([chance for chance, _, _ in likely])
        counts = rng.multinomial(count, chances / chances.sum()).tolist()
        drawn = [
            drawn_from(mean, covariance, count=each, rng=rng)
            for each, (_, mean, covariance) in zip(counts, likely, strict=True)
        ]
        return np.vstack(drawn) + known

    def ratios(
        self, rows: Sequence[Mapping[str, Value]], over: Mapping[str, Value]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """See ``JointSurrogate``: averaged over how much of what measurements differ by may be noise."""
        features = encoded(self.history.columns, [*rows, over])
        known = self.elsewhere.logarithms([*rows, over]) if self.elsewhere is not None else np.zeros(len(rows) + 1)
        first: NDArray[np.float64] = np.zeros(len(rows))
        second: NDArray[np.float64] = np.zeros(len(rows))
        likely = self.process.alternatives(features)
        total = sum(chance for chance, _, _ in likely)
        for chance, mean, covariance in likely:
            gain = (mean + known)[:-1] - (mean + known)[-1]
            variance = np.diag(covariance)[:-1] + covariance[-1, -1] - 2.0 * covariance[:-1, -1]
            first += chance / total * gain
            second += chance / total * (gain**2 + np.maximum(variance, 0.0))
        return first, np.sqrt(np.maximum(second - first**2, 1e-10))
