"""Ensemble of one-hot MLPs (CubicML, section 3.4), calibrated to throughput; ``networks`` has the ranking loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.intervals import NOISE_FLOOR, conformal_scale, prior_variance
from torchx_cubicml.predictors.ranking.networks import RankingSettings, train_networks
from torchx_cubicml.predictors.ranking.one_hot import OneHot
from torchx_cubicml.predictors.threads import one_thread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import MeasuredRows, TrainingTable


_LEAST_SLOPE = 1e-3  # log throughput per unit of score: keeps the order of scores where the curve is flat


@dataclass(frozen=True, slots=True, kw_only=True)
class IsotonicCurve:
    """Isotonic regression, interpolated linearly between its steps and extrapolated with a slope beyond both ends.

    Args:
        scores: of the joints, ascending, ``[n_joints]``.
        values: of the joints, ascending, ``[n_joints]``.
        slope: beyond the ends; ``_LEAST_SLOPE`` is added everywhere.
    """

    scores: NDArray[np.float64]
    values: NDArray[np.float64]
    slope: float

    @classmethod
    def through(cls, scores: NDArray[np.float64], values: NDArray[np.float64], weights: NDArray[np.float64]) -> Self:
        """Return the curve of weighted least squares through points ``[n]`` with ``weights`` > 0, n >= 1."""
        order = np.lexsort((values, scores))
        blocks: list[tuple[float, float, float]] = []  # weight, mean score, mean value
        for score, value, weight in np.column_stack([scores, values, weights])[order].tolist():
            block = (weight, score, value)
            while blocks and (blocks[-1][2] >= block[2] or blocks[-1][1] == block[1]):  # pool adjacent violators, ties
                block = _pool(blocks.pop(), block)
            blocks.append(block)
        joints = np.array(blocks)
        return cls(scores=joints[:, 1], values=joints[:, 2], slope=_slope(scores, values, weights))

    def __call__(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values at ``scores``, of any shape; strictly rising."""
        beyond = np.maximum(scores - self.scores[-1], 0.0) + np.minimum(scores - self.scores[0], 0.0)
        inside = np.interp(scores, self.scores, self.values)
        return np.asarray(inside + self.slope * beyond + _LEAST_SLOPE * scores, dtype=np.float64)


def _pool(left: tuple[float, float, float], right: tuple[float, float, float]) -> tuple[float, float, float]:
    weight = left[0] + right[0]
    share = left[0] / weight
    return weight, share * left[1] + (1 - share) * right[1], share * left[2] + (1 - share) * right[2]


def _slope(scores: NDArray[np.float64], values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    scores = scores - np.average(scores, weights=weights)
    variance = float(np.average(scores**2, weights=weights))
    if variance <= 0:
        return 0.0
    covariance = float(np.average(scores * (values - np.average(values, weights=weights)), weights=weights))
    return max(covariance / variance, 0.0)


class RankingMLP:
    """The ``ranking_mlp`` predictor: ranking scores of an MLP ensemble, mapped to throughput by isotonic regression.

    Args:
        settings: of the networks.
    """

    def __init__(self, settings: RankingSettings | None = None) -> None:
        self.settings = settings or RankingSettings()

    def fit(self, history: TrainingTable, *, rng: np.random.Generator) -> Self:
        """Fit on the measured rows of ``history``; see ``Predictor``."""
        with one_thread():
            self._fit(history, rng)
        return self

    def _fit(self, history: TrainingTable, rng: np.random.Generator) -> None:
        rows = history.measured
        self.n_measured_ = len(rows)
        if not self.n_measured_:
            return
        self.inputs_ = OneHot.of(rows.features, history.columns, knots=self.settings.knots)
        self.mean_logarithm_ = float(np.average(rows.logarithm, weights=rows.weights))
        self.has_networks_ = self.n_measured_ > 2 and self.inputs_.width > 0
        between_variance = 0.0 if self.has_networks_ else float(np.var(rows.logarithm))
        self.variance_ = prior_variance(float(rows.weights.sum())) + between_variance
        if self.has_networks_:
            self._fit_networks(rows, rng)

    def _fit_networks(self, rows: MeasuredRows, rng: np.random.Generator) -> None:
        inputs, target = self.inputs_.encode(rows.features), rows.logarithm
        bags = _bags(self.settings, len(target), rng)
        seed = int(rng.integers(2**31))
        self.networks_ = train_networks(inputs, target, bags * rows.weights, settings=self.settings, seed=seed)
        scores = self.networks_.scores(inputs)
        # The ranking loss does not determine the location and scale of a network's scores.
        self.centre_, self.scale_ = scores.mean(axis=0), np.maximum(scores.std(axis=0), 1e-9)
        scores = (scores - self.centre_) / self.scale_
        out_of_bag = np.where(bags.T, np.nan, scores)
        oob_scores = np.nanmean(out_of_bag, axis=1)
        self.curve_ = IsotonicCurve.through(oob_scores, target, rows.weights)
        residual = np.abs(target - self.curve_(oob_scores))
        self.slope_ = max(self.curve_.slope, 0.0)
        spread = np.sqrt(self.variance_ + NOISE_FLOOR**2 + (self.slope_ * _deviation(out_of_bag)) ** 2)
        self.widening_ = conformal_scale(residual, np.hypot(spread, rows.uncertainty), fewest=1)

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows; see ``Predictor``."""
        if not self.n_measured_:
            return Prediction.unknown(len(features))
        if not self.has_networks_:
            spread = np.full(len(features), max(self.variance_**0.5, NOISE_FLOOR))
            return Prediction.of_measurement(np.full(len(features), self.mean_logarithm_), spread)
        with one_thread():
            scores = (self.networks_.scores(self.inputs_.encode(features)) - self.centre_) / self.scale_
        variance = self.variance_ + NOISE_FLOOR**2 + (self.slope_ * _deviation(scores)) ** 2
        spread = np.maximum(self.widening_ * np.sqrt(variance), NOISE_FLOOR)
        return Prediction.of_measurement(self.curve_(scores.mean(axis=1)), spread)


def _deviation(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard deviation over the members for each row, ``[n]``; 0 with a single member."""
    n_members = (~np.isnan(scores)).sum(axis=1)
    return np.asarray(np.nanstd(scores, axis=1) * np.sqrt(n_members / np.maximum(n_members - 1, 1)), dtype=np.float64)


def _bags(settings: RankingSettings, n_trials: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return a mask of the trials that each network is fitted on, ``[networks, n_trials]``.

    Each trial is left out by at least one network.
    """
    left_out = max(1, round((1.0 - settings.bag) * settings.networks))
    order = rng.random((settings.networks, n_trials)).argsort(axis=0)
    return order >= left_out
