"""Surrogate across workloads: a geometric-mean ensemble of predictors."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from torchx_cubicml.advisor.surrogates.base import FEWEST_OWN, MOST_LEARNED, Forecast
from torchx_cubicml.advisor.trial_data import is_covered, telling
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, ENSEMBLE, PREDICTORS, CrossWorkloadFeasibility, Prediction
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.predictors.features.rows import encoded
from torchx_cubicml.predictors.greybox import Greybox
from torchx_cubicml.predictors.intervals import NOISE_FLOOR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.surrogates.base import Forecaster, Surrogate, TrainingData
    from torchx_cubicml.predictors.features.history import History
    from torchx_cubicml.records.trial import Value


class FittedPredictor(Protocol):
    """A predictor that is fitted."""

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """See ``Predictor``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricMeanEnsemble:
    """Fitted predictors as one: the geometric mean of what they expect, with the spread of the first.

    Args:
        first: what the others join; where it knows nothing, nobody does.
        others: those of them that step aside from a row are not counted there.
    """

    first: FittedPredictor
    others: Sequence[FittedPredictor]

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows; see ``Predictor``."""
        first = self.first.predict(features)
        logarithm = np.log(first.throughput)
        told = np.stack([logarithm, *(np.log(other.predict(features).throughput) for other in self.others)])
        told = np.where(np.isfinite(told), told, logarithm)
        return Prediction(throughput=np.exp(told.mean(axis=0)), spread=first.spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossWorkloadSurrogate:
    """Learned from all workloads: a predictor and a classifier of outcomes.

    Trees smooth over many configs, so a config's own measurements still tell more than a forecast.

    Args:
        history: the trials learned from.
        predictor: fitted on them.
        feasibility: fitted on them.
        noise: part of the predictor's spreads that is of a measurement alone.
        others: methods that are asked beside the predictor for what to launch.
        agreeing: whether it is searched for by what they agree on, rather than by each in turn.
    """

    history: History
    predictor: FittedPredictor
    feasibility: CrossWorkloadFeasibility
    noise: float
    others: tuple[str, ...] = ENSEMBLE[1:]
    agreeing: bool = False

    @classmethod
    def of(cls, lesson: TrainingData, *, rng: np.random.Generator) -> Self:
        """Return what all trials teach."""
        known = sum(trial.measurement is not None for trial in lesson.own) >= FEWEST_OWN
        trials = telling(lesson.everything, lesson.workload, count=MOST_LEARNED)
        history = lesson.history(trials)
        return cls(
            history=history,
            predictor=lesson.fitted(history, rng=rng),
            feasibility=CrossWorkloadFeasibility(compare=lesson.compare).fit(history, rng=rng),
            noise=lesson.noise or NOISE_FLOOR,
            others=() if known else tuple(name for name in ENSEMBLE if name != lesson.predictor),
            agreeing=lesson.predictor == DEFAULT_PREDICTOR and not known and is_covered(lesson.workload, trials),
        )

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Forecast:
        """See ``Forecaster``."""
        features = encoded(self.history.columns, rows)
        prediction = self.predictor.predict(features)
        # The predictor's spread is of a measurement; what is sought is the true value behind it.
        spread = np.sqrt(np.maximum(prediction.spread**2 - self.noise**2, (0.3 * prediction.spread) ** 2))
        fits = self.feasibility.probability(features, rows)
        return Forecast(logarithm=np.log(prediction.throughput), spread=spread, fits=fits)

    def outliers(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.bool_]:
        """Trees smooth over many configs, and each measurement is believed."""
        return np.zeros(len(rows), dtype=np.bool_)

    def ensemble(self, *, one: bool) -> list[Surrogate]:
        """Return what the default predictor and the others agree on, or each where they had better not be mixed.

        On facts that no trial had, formulas go on where trees repeat the nearest: there the default is not outvoted.
        """
        if one and not self.agreeing:
            return [self]
        made = [self._asked(name) for name in self.others]
        if self.agreeing:
            return [replace(self, predictor=GeometricMeanEnsemble(first=self.predictor, others=made))]
        return [self, *(replace(self, predictor=predictor) for predictor in made)]

    def _asked(self, name: str) -> FittedPredictor:
        if name == "roofline" and isinstance(self.predictor, Greybox):
            return self.predictor.without_trees()  # whose formulas are calibrated on the same trials
        return PREDICTORS[name]().fit(self.history, rng=np.random.default_rng(0))

    def fantasize(self, rows: Sequence[Mapping[str, Value]]) -> Self:
        """Trees learn nothing from a guess of their own."""
        del rows
        return self

    def optimistic(self) -> Self:
        """Trees over all workloads know what is usual."""
        return self

    def sample_function(self, rows: Sequence[Mapping[str, Value]], *, rng: np.random.Generator) -> Forecaster:
        """Each config is drawn for itself: trees do not say what two configs have in common."""
        del rows
        return ThompsonSample(source=self, seed=int(rng.integers(2**31)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ThompsonSample:
    """What ``source`` believes, each config moved by a chance of its own that stays the same."""

    source: CrossWorkloadSurrogate
    seed: int

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Forecast:
        """See ``Forecaster``."""
        forecast = self.source.forecast(rows)
        seeds = ([self.seed, zlib.crc32(config_key(row).encode())] for row in rows)
        chances = np.array([np.random.default_rng(seed).standard_normal() for seed in seeds], dtype=np.float64)
        return replace(forecast, logarithm=forecast.logarithm + chances * forecast.spread)
