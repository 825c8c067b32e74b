"""Gradient boosting of the log throughput, with a linear trend below it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.extra_trees import ExtraTrees
from torchx_cubicml.predictors.features.learner_inputs import Inputs
from torchx_cubicml.predictors.intervals import FEWEST, NOISE_FLOOR, Novelty, conformal_scale, prior_variance
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.predictors.weighted import weighted_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import History, MeasuredRows


# On slopes of standardised inputs, in trials' worth. The choice is by leave-one-out error, which is free for ridge.
_PENALTIES = (1.0, 4.0, 16.0, 64.0)
_HUBER = 1.5  # residuals beyond this many robust standard deviations pull no harder
_ROUNDS = 4  # of reweighting; the weights settle in three or four
_MOST_LEVERAGE = 4.0  # the trend itself is never believed to be off by more than two residual spreads


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Ridge regression with Huber weights on standardised inputs.

    Args:
        weights: intercept first, ``[1 + n_inputs]``.
        inverse: inverse of the penalised normal matrix, ``[1 + n_inputs, 1 + n_inputs]``.
        leave_one_out: residuals of the training rows, each predicted without itself, ``[n]``.
    """

    weights: NDArray[np.float64]
    inverse: NDArray[np.float64]
    leave_one_out: NDArray[np.float64]

    @classmethod
    def fit(
        cls, inputs: NDArray[np.float64], values: NDArray[np.float64], sample_weight: NDArray[np.float64] | None = None
    ) -> Self:
        """Return the trend of ``values`` ``[n]`` over ``inputs`` ``[n, n_inputs]``, n >= 1.

        Args:
            inputs: standardised.
            values: what is to be told.
            sample_weight: how much each counts, ``[n]``, > 0 and at most 1; ``None``: all alike.
        """
        sample_weight = np.ones(len(values)) if sample_weight is None else sample_weight
        fits = [cls._fit(_with_intercept(inputs), values, sample_weight, penalty) for penalty in _PENALTIES]
        return min(fits, key=lambda trend: float(np.average(np.abs(trend.leave_one_out), weights=sample_weight)))

    @classmethod
    def _fit(
        cls,
        design: NDArray[np.float64],
        values: NDArray[np.float64],
        sample_weight: NDArray[np.float64],
        penalty: float,
    ) -> Self:
        trust = sample_weight
        ridge = np.diag([1e-9, *[penalty] * (design.shape[1] - 1)])
        for _ in range(_ROUNDS):
            inverse = np.asarray(np.linalg.inv(design.T @ (trust[:, None] * design) + ridge), dtype=np.float64)
            weights = inverse @ (design.T @ (trust * values))
            residuals = values - design @ weights
            leverage = trust * np.einsum("ij,ij->i", design @ inverse, design)
            trust = sample_weight * _huber(residuals)
        alone = residuals / np.maximum(1.0 - leverage, 0.05)
        return cls(weights=weights, inverse=inverse, leave_one_out=alone)

    def predict(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the trend at ``inputs`` ``[n, n_inputs]``, float64 ``[n]``."""
        return np.asarray(_with_intercept(inputs) @ self.weights, dtype=np.float64)

    def leverage(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how many residual variances the trend itself is uncertain by at ``inputs``, float64 ``[n]``."""
        design = _with_intercept(inputs)
        variances = np.einsum("ij,ij->i", design @ self.inverse, design)
        return np.asarray(np.minimum(variances, _MOST_LEVERAGE), dtype=np.float64)


def _with_intercept(inputs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.hstack([np.ones((len(inputs), 1)), inputs])


def _huber(residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    limit = _HUBER * 1.4826 * float(np.median(np.abs(residuals))) + 1e-12
    return np.asarray(limit / np.maximum(np.abs(residuals), limit), dtype=np.float64)


class Boosting:
    """The ``boosting`` predictor.

    Args:
        n_rounds: boosting rounds at most; half of them below 50 trials.
        n_trees: randomised trees.
    """

    def __init__(self, *, n_rounds: int = 300, n_trees: int = 50) -> None:
        self.n_rounds = n_rounds
        self.n_trees = n_trees

    def fit(self, history: History, *, rng: np.random.Generator) -> Self:
        """Learn from the measured rows of ``history``; see ``Predictor``."""
        with one_thread():
            self._fit(history, seed=int(rng.integers(2**31)))
        return self

    def _fit(self, history: History, *, seed: int) -> None:
        rows = history.measured
        features, target, weights = rows.features, rows.logarithm, rows.weights
        self.n_measured_, self.belief_ = len(rows), prior_variance(float(weights.sum()))
        if not self.n_measured_:
            return
        self.inputs_ = Inputs.of(features, history.columns.categorical)
        dense = self.inputs_.dense(features)
        self.trend_ = Trend.fit(dense, target, weights)
        rest = target - self.trend_.predict(dense)
        self.learns_rest_ = dense.shape[1] > 0 and self.n_measured_ > 2
        if self.learns_rest_:
            self.forest_ = ExtraTrees(dense, rest, n_trees=self.n_trees, seed=seed, sample_weight=weights)
            self.boosted_ = self._boost(self.inputs_.gapped(features), rest, weights, seed)
        self._calibrate(dense, rows)
        numbers = features[:, ~np.array(history.columns.categorical, dtype=np.bool_)]
        plain = Inputs.of(numbers, [False] * numbers.shape[1]).dense(numbers)
        without = target - Trend.fit(plain, target, weights).predict(plain)
        self.novelty_ = Novelty.of(features, history.columns, without)

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows; see ``Predictor``."""
        if not self.n_measured_:
            unknown = np.full(len(features), np.nan)
            return Prediction(throughput=unknown, spread=unknown)
        with one_thread():
            return self._predict(features)

    def _predict(self, features: NDArray[np.float64]) -> Prediction:
        dense = self.inputs_.dense(features)
        logarithm = self.trend_.predict(dense)
        disagreement = np.zeros(len(features))
        if self.learns_rest_:
            middle, disagreement = self.forest_.predict(dense)
            logarithm = logarithm + 0.5 * (middle + self.boosted_.predict(self.inputs_.gapped(features)))
        spread = self.scale_ * self._raw_spread(disagreement, self.trend_.leverage(dense))
        strange = self.novelty_.of_categories(features) + self.novelty_.of_numbers(features)
        return Prediction.at(logarithm, np.maximum(np.sqrt(spread**2 + strange), NOISE_FLOOR))

    def _boost(
        self, gapped: NDArray[np.float64], rest: NDArray[np.float64], weights: NDArray[np.float64], seed: int
    ) -> _Regressor:
        from sklearn.ensemble import HistGradientBoostingRegressor

        few = len(rest) < 50
        learner: _Regressor = HistGradientBoostingRegressor(
            loss="absolute_error",
            learning_rate=0.1,
            max_iter=self.n_rounds // 2 if few else self.n_rounds,
            max_leaf_nodes=15,
            # scikit-learn's default of 20 would not split at all below 40 trials.
            min_samples_leaf=int(np.clip(len(rest) // 20, 2, 20)),
            l2_regularization=0.1,
            categorical_features=self.inputs_.gapped_categorical,
            early_stopping=False,
            random_state=seed,
        )
        with one_thread():
            return learner.fit(gapped, rest, sample_weight=weights if weights.min() < 1.0 else None)

    def _raw_spread(self, disagreement: NDArray[np.float64], leverage: NDArray[np.float64]) -> NDArray[np.float64]:
        variance = NOISE_FLOOR**2 + self.belief_ + disagreement**2 + self.residual_variance_ * leverage
        return np.asarray(np.sqrt(variance), dtype=np.float64)

    def _calibrate(self, dense: NDArray[np.float64], rows: MeasuredRows) -> None:
        """Scale the spread so that it covers four fifths of the residuals of trials predicted without themselves.

        A residual that its run's own doubt explains widens nothing.
        """
        alone = self.trend_.leave_one_out
        self.residual_variance_ = (weighted_quantile(np.abs(alone), rows.weights, 0.5) * 1.4826) ** 2
        self.scale_ = 1.0
        if not self.learns_rest_ or len(rows) < FEWEST:
            return
        middle, disagreement = self.forest_.out_of_bag(dense)
        spread = self._raw_spread(disagreement, self.trend_.leverage(dense))
        self.scale_ = conformal_scale(np.abs(alone - middle), np.hypot(spread, rows.uncertainty))


class _Regressor(Protocol):
    def fit(
        self, inputs: NDArray[np.float64], values: NDArray[np.float64], /, sample_weight: NDArray[np.float64] | None
    ) -> Self: ...
    def predict(self, inputs: NDArray[np.float64], /) -> NDArray[np.float64]: ...
