"""Surrogate across workloads: a geometric-mean ensemble of predictors."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from torchx_cubicml.advisor.surrogates.base import MAX_OWN, MAX_TRIALS, MIN_OWN, with_fantasy_failures
from torchx_cubicml.advisor.surrogates.transfer_prior import transformer_covers
from torchx_cubicml.advisor.trial_data import are_facts_seen, informative_trials
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, ENSEMBLE, PREDICTORS, CrossWorkloadFeasibility, Prediction
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.predictors.features.rows import encode_rows
from torchx_cubicml.predictors.greybox import Greybox
from torchx_cubicml.predictors.intervals import NOISE_FLOOR
from torchx_cubicml.predictors.memory.per_workload import WorkloadFeasibility

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.surrogates.base import FeasibilityModel, Forecaster, Surrogate, TrainingData
    from torchx_cubicml.predictors.features.columns import Columns
    from torchx_cubicml.predictors.features.history import TrainingTable
    from torchx_cubicml.records.values import Value


class FittedPredictor(Protocol):
    """A predictor that is fitted."""

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows; see ``Predictor``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricMeanEnsemble:
    """Ensemble of fitted predictors: the geometric mean of their throughputs, with the spread of the first.

    Args:
        first: the reference; where it predicts NaN, so does the ensemble.
        others: those that predict no finite value for a row are replaced by ``first`` there.
    """

    first: FittedPredictor
    others: Sequence[FittedPredictor]

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows; see ``Predictor``."""
        first = self.first.predict(features)
        logarithms = np.stack([first.logarithm, *(other.predict(features).logarithm for other in self.others)])
        logarithms = np.where(np.isfinite(logarithms), logarithms, first.logarithm)
        return replace(first, logarithm=logarithms.mean(axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossWorkloadSurrogate:
    """Surrogate fitted to all workloads: a predictor of throughput and a classifier of memory fit.

    Trees smooth over many configs, so a config's own measurements must still be combined with a forecast.

    Args:
        history: training trials.
        predictor: fitted on them.
        feasibility: fitted on them, or on the workload's own trials where these tell more.
        feasibility_columns: meaning of its features.
        noise: part of the predictor's spread that is measurement noise.
        others: methods besides the predictor that propose launches.
        agreeing: whether the search uses the ensemble's mean, rather than each predictor in turn.
    """

    history: TrainingTable
    predictor: FittedPredictor
    feasibility: FeasibilityModel
    feasibility_columns: Columns
    noise: float
    others: tuple[str, ...]
    agreeing: bool

    @classmethod
    def of(cls, data: TrainingData, *, rng: np.random.Generator) -> Self:
        """Return the surrogate fitted to all trials."""
        has_own = sum(trial.measurement is not None for trial in data.own) >= MIN_OWN
        trials = informative_trials(data.all_trials, data.workload, count=MAX_TRIALS)
        history = data.history(trials)
        predictor = data.fitted(history, rng=rng)
        feasibility, columns = _fit_feasibility(data, history, rng=rng)
        return cls(
            history=history,
            predictor=predictor,
            feasibility=feasibility,
            feasibility_columns=columns,
            noise=data.noise or NOISE_FLOOR,
            others=() if has_own else tuple(name for name in ENSEMBLE if name != data.predictor),
            agreeing=data.predictor == DEFAULT_PREDICTOR and not has_own and are_facts_seen(data.workload, trials),
        )

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Prediction:
        """Return the forecast of ``rows``; see ``Forecaster``."""
        features = encode_rows(self.history.columns, rows)
        prediction = self.predictor.predict(features)
        # The predictor's spread includes measurement noise, unlike that of the true value.
        spread = np.sqrt(np.maximum(prediction.spread**2 - self.noise**2, (0.3 * prediction.spread) ** 2))
        features = encode_rows(self.feasibility_columns, rows)
        return replace(prediction, spread=spread, fits=self.feasibility.probability(features, rows))

    def outliers(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.bool_]:
        """Return False for every row: trees smooth over many configs, and each measurement is trusted."""
        return np.zeros(len(rows), dtype=np.bool_)

    def ensemble(self, *, one: bool) -> list[Surrogate]:
        """Return the ensemble's geometric mean as one surrogate, or one surrogate per predictor.

        On facts that no trial had, the roofline model extrapolates where trees repeat the nearest trials. There the
        predictors stay separate, so that the default is not outvoted; with ``one``, only this surrogate is returned.
        """
        if one and not self.agreeing:
            return [self]
        others = [self._fitted(name) for name in self.others]
        if self.agreeing:
            return [replace(self, predictor=GeometricMeanEnsemble(first=self.predictor, others=others))]
        return [self, *(replace(self, predictor=predictor) for predictor in others)]

    def _fitted(self, name: str) -> FittedPredictor:
        if name == "roofline" and isinstance(self.predictor, Greybox):
            return self.predictor.without_trees()  # its roofline model is calibrated on the same trials
        return PREDICTORS[name]().fit(self.history, rng=np.random.default_rng(0))

    def fantasize(self, rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return this surrogate with fantasy failures alone: trees gain nothing from their own predictions."""
        if not rows:
            return self
        features = encode_rows(self.feasibility_columns, rows)
        return replace(self, feasibility=with_fantasy_failures(self.feasibility, features, rows))

    def optimistic(self) -> Self:
        """Return this surrogate unchanged: trees over all workloads already have a prior mean."""
        return self

    def sample_function(self, rows: Sequence[Mapping[str, Value]], *, rng: np.random.Generator) -> Forecaster:
        """Return a Thompson sample, independent per config: trees have no covariance between configs."""
        del rows
        return ThompsonSample(source=self, seed=int(rng.integers(2**31)))


def _fit_feasibility(
    data: TrainingData, history: TrainingTable, *, rng: np.random.Generator
) -> tuple[FeasibilityModel, Columns]:
    """Return the classifier of memory fit and the columns of its features.

    The workload's own recorded peaks tell more than all outcomes of others. Without peaks, its own outcomes suffice if
    no other workload is known and the memory formula does not cover it. Beyond ``MAX_OWN`` measurements the trees know
    the limit as well.
    """
    if len(data.own) > 0 and sum(trial.measurement is not None for trial in data.own) <= MAX_OWN:
        own, is_alone = data.own_history(), len(data.own) == len(data.all_trials)
        if len(own.rows) and (own.has_peaks or (is_alone and not transformer_covers(data.own))):
            return WorkloadFeasibility(order=data.order, tuned=data.tuned).fit(own), own.columns
    return CrossWorkloadFeasibility(order=data.order).fit(history, rng=rng), history.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class ThompsonSample:
    """Thompson sample of ``source``: each config's forecast plus fixed noise of its own."""

    source: CrossWorkloadSurrogate
    seed: int

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Prediction:
        """Return the sampled forecast of ``rows``; see ``Forecaster``."""
        forecast = self.source.forecast(rows)
        seeds = ([self.seed, zlib.crc32(config_key(row).encode())] for row in rows)
        noise = np.array([np.random.default_rng(seed).standard_normal() for seed in seeds], dtype=np.float64)
        return replace(forecast, logarithm=forecast.logarithm + noise * forecast.spread)
