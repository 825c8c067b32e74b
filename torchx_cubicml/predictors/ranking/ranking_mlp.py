"""The paper's first predictor (CubicML, arXiv 2409.04585, A.1.1): an ensemble of networks that ranks jobs.

Every parameter is one-hot, numbers too; identical networks with one hidden layer and dropout are taught by AMSGrad
with weight decay to keep a margin between the faster and the slower of each pair. A searcher needs no more than that
order. So that the predictor also says a throughput, a rising curve leads from the mean score to what was measured of
trials of that score, each scored by the networks that did not learn from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.conformal import NOISE_FLOOR, conformal_scale, prior_variance
from torchx_cubicml.predictors.ranking.networks import RankingSettings, teach
from torchx_cubicml.predictors.ranking.one_hot import OneHot
from torchx_cubicml.predictors.ranking.ranking_calibration import RisingCurve
from torchx_cubicml.predictors.threads import one_thread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import History, MeasuredRows


class RankingMLP:
    """The ``ranking_mlp`` predictor.

    Args:
        settings: of the networks.
    """

    def __init__(self, settings: RankingSettings | None = None) -> None:
        self.settings = settings or RankingSettings()

    def fit(self, history: History, *, rng: np.random.Generator) -> Self:
        """Learn from the measured rows of ``history``; see ``Predictor``."""
        with one_thread():
            self._fit(history, rng)
        return self

    def _fit(self, history: History, rng: np.random.Generator) -> None:
        rows = history.measured
        self.n_measured_ = len(rows)
        if not self.n_measured_:
            return
        self.inputs_ = OneHot.of(rows.features, history.columns, knots=self.settings.knots)
        self.middle_ = float(np.average(rows.logarithm, weights=rows.weights))
        self.ranks_ = self.n_measured_ > 2 and self.inputs_.width > 0
        unlike = 0.0 if self.ranks_ else float(np.var(rows.logarithm))
        self.variance_ = prior_variance(float(rows.weights.sum())) + unlike
        if self.ranks_:
            self._rank(rows, rng)

    def _rank(self, rows: MeasuredRows, rng: np.random.Generator) -> None:
        inputs, target = self.inputs_.encode(rows.features), rows.logarithm
        bags = _bags(self.settings, len(target), rng)
        seed = int(rng.integers(2**31))
        self.networks_ = teach(inputs, target, bags * rows.weights, settings=self.settings, seed=seed)
        scores = self.networks_.scores(inputs)
        # The loss leaves open where a network's scores lie and how wide they are spread.
        self.centre_, self.scale_ = scores.mean(axis=0), np.maximum(scores.std(axis=0), 1e-9)
        scores = (scores - self.centre_) / self.scale_
        outside = np.where(bags.T, np.nan, scores)
        alone = np.nanmean(outside, axis=1)
        self.curve_ = RisingCurve.through(alone, target, rows.weights)
        residual = np.abs(target - self.curve_(alone))
        self.slope_ = max(self.curve_.slope, 0.0)
        spread = np.sqrt(self.variance_ + NOISE_FLOOR**2 + (self.slope_ * _deviation(outside)) ** 2)
        self.widening_ = conformal_scale(residual, np.hypot(spread, rows.uncertainty), fewest=1)

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows; see ``Predictor``."""
        if not self.n_measured_:
            unknown = np.full(len(features), np.nan)
            return Prediction(throughput=unknown, spread=unknown)
        if not self.ranks_:
            spread = np.full(len(features), max(self.variance_**0.5, NOISE_FLOOR))
            return Prediction.at(np.full(len(features), self.middle_), spread)
        with one_thread():
            scores = (self.networks_.scores(self.inputs_.encode(features)) - self.centre_) / self.scale_
        variance = self.variance_ + NOISE_FLOOR**2 + (self.slope_ * _deviation(scores)) ** 2
        spread = np.maximum(self.widening_ * np.sqrt(variance), NOISE_FLOOR)
        return Prediction.at(self.curve_(scores.mean(axis=1)), spread)


def _deviation(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far the members disagree over each row, ``[n]``; 0 where one alone is asked."""
    asked = (~np.isnan(scores)).sum(axis=1)
    return np.asarray(np.nanstd(scores, axis=1) * np.sqrt(asked / np.maximum(asked - 1, 1)), dtype=np.float64)


def _bags(settings: RankingSettings, n_trials: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which trials each network learns from, ``[networks, n_trials]``; one at least leaves each trial out."""
    left_out = max(1, round((1.0 - settings.bag) * settings.networks))
    order = rng.random((settings.networks, n_trials)).argsort(axis=0)
    return order >= left_out
