"""Surrogate of one workload: a Gaussian process and a memory model fitted to its own trials."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.advisor.surrogates.base import with_fantasy_failures
from torchx_cubicml.predictors import Prediction
from torchx_cubicml.predictors.features.rows import encode_rows
from torchx_cubicml.predictors.gaussian_process.process import sample_normal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.surrogates.base import Forecaster, Surrogate
    from torchx_cubicml.advisor.surrogates.transfer_prior import TransferPrior
    from torchx_cubicml.predictors import CrossWorkloadFeasibility
    from torchx_cubicml.predictors.features.history import TrainingTable
    from torchx_cubicml.predictors.gaussian_process.process import GaussianProcess
    from torchx_cubicml.predictors.memory.per_workload import WorkloadFeasibility
    from torchx_cubicml.records.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class PerWorkloadSurrogate:
    """Gaussian process of throughput and classifier of memory fit, fitted to the workload's own trials.

    Args:
        history: training trials.
        process: of the logarithm of throughput, or of its ratio to ``prior``.
        memory: probability to fit.
        prior: prior mean of the process; ``None`` where it does not raise the evidence.
        fit_optimistic: fits the process with an optimistic prior mean; ``None`` where there is none.
    """

    history: TrainingTable
    process: GaussianProcess
    memory: WorkloadFeasibility | CrossWorkloadFeasibility
    prior: TransferPrior | None = None
    fit_optimistic: Callable[[], GaussianProcess] | None = None

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Prediction:
        """Return the forecast of ``rows``; see ``Forecaster``."""
        features = encode_rows(self.history.columns, rows)
        latent = self.process.latent(features)
        prior_mean = self.prior.logarithms(rows) if self.prior is not None else 0.0
        return replace(latent, logarithm=latent.logarithm + prior_mean, fits=self.memory.probability(features, rows))

    def outliers(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.bool_]:
        """Return whether rows are outliers, ``[n]``; see ``Surrogate``."""
        return self.process.outliers(encode_rows(self.history.columns, rows))

    def ensemble(self, *, one: bool) -> list[Surrogate]:
        """Return this surrogate alone: with measurements of its own the workload needs no other."""
        del one
        return [self]

    def fantasize(self, rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return this surrogate with fantasy observations at ``rows`` (kriging believer); see ``Surrogate``.

        After a fantasy failure the batch stays away from similar configs, and from all that need as much memory.
        """
        if not rows:
            return self
        features = encode_rows(self.history.columns, rows)
        memory = with_fantasy_failures(self.memory, features, rows)
        return replace(self, process=self.process.fantasize(features), memory=memory)

    def optimistic(self) -> Self:
        """Return this surrogate with the optimistic prior mean; see ``Surrogate``.

        Larger micro batches have less overhead, and choices that take more memory are faster.
        """
        if self.fit_optimistic is None:
            return self
        return replace(self, process=self.fit_optimistic(), fit_optimistic=None)

    def sample_function(self, rows: Sequence[Mapping[str, Value]], *, rng: np.random.Generator) -> Forecaster:
        """Return a Thompson sample drawn at ``rows``; see ``Surrogate``."""
        return replace(self, process=self.process.sample_function(encode_rows(self.history.columns, rows), rng=rng))

    def sample(
        self, rows: Sequence[Mapping[str, Value]], *, count: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Return joint samples over all likely shares of noise, ``[count, n]``; see ``JointSurrogate``."""
        features = encode_rows(self.history.columns, rows)
        prior_mean = self.prior.logarithms(rows) if self.prior is not None else np.zeros(len(rows))
        posterior_mixture = self.process.posterior_mixture(features)
        probabilities = np.array([probability for probability, _, _ in posterior_mixture])
        counts = rng.multinomial(count, probabilities / probabilities.sum()).tolist()
        samples = [
            sample_normal(mean, covariance, count=each, rng=rng)
            for each, (_, mean, covariance) in zip(counts, posterior_mixture, strict=True)
        ]
        return np.vstack(samples) + prior_mean

    def without(self, row: Mapping[str, Value]) -> Prediction:
        """Return the leave-one-out prediction of ``row``; see ``JointSurrogate``."""
        features = encode_rows(self.history.columns, [row])
        prior_mean = self.prior.logarithms([row]) if self.prior is not None else 0.0
        latent = self.process.without(features).latent(features)
        return replace(latent, logarithm=latent.logarithm + prior_mean)

    def ratios(self, rows: Sequence[Mapping[str, Value]], over: Mapping[str, Value]) -> Prediction:
        """Return the posterior of ratios over all likely shares of noise; see ``JointSurrogate``."""
        features = encode_rows(self.history.columns, [*rows, over])
        prior_mean = self.prior.logarithms([*rows, over]) if self.prior is not None else np.zeros(len(rows) + 1)
        first_moment: NDArray[np.float64] = np.zeros(len(rows))
        second_moment: NDArray[np.float64] = np.zeros(len(rows))
        posterior_mixture = self.process.posterior_mixture(features)
        total = sum(probability for probability, _, _ in posterior_mixture)
        for probability, mean, covariance in posterior_mixture:
            gain = (mean + prior_mean)[:-1] - (mean + prior_mean)[-1]
            variance = np.diag(covariance)[:-1] + covariance[-1, -1] - 2.0 * covariance[:-1, -1]
            first_moment += probability / total * gain
            second_moment += probability / total * (gain**2 + np.maximum(variance, 0.0))
        return Prediction(logarithm=first_moment, spread=np.sqrt(np.maximum(second_moment - first_moment**2, 1e-10)))
